"""HTTP/2 (RFC 9113) as a server speaks it, and gRPC's rules on top, as state machines: bytes and times in, events and bytes
out.

Nothing here does I/O, reads a clock or knows a loop. http2.py is the machine (inbound frames), outbound.py what goes out and
when, stream_table.py and streams.py what is open; header_assembly.py, tpy.http2.header_blocks (HPACK) and header_rules.py what a
request's headers are and must be; pings.py keeps peers within bounds; lifetime.py when a connection must end. For
gRPC: request_head.py (what the headers of a call say), framing.py (messages within a stream), answers.py (the headers and
trailers we send), deadlines.py.
"""
