"""Numbers, frames and header blocks of HTTP/2 (RFC 9113), for both ends of a connection. No I/O. The server's machine is in
`tpy.frontends.grpc.transport.core`, the load generator's in `tpy_tools.load.core`."""
