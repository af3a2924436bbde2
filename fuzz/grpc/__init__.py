"""Fuzzing of the gRPC transport: the HTTP/2 machine under hostile bytes and against the h2 library, and message framing."""
