"""HTTP/2 (RFC 9113) as a server speaks it, and gRPC's rules on top, as state machines: bytes and times in, events and bytes
out.

Nothing here does I/O, reads a clock or knows a loop. http2.py is the machine (frame_reader.py reads its frames), streams.py
what is open and what goes out when, calls.py what gRPC says in headers and messages, timing.py when pings, calls and
connections are due. HPACK is tpy.http2.header_blocks.
"""
