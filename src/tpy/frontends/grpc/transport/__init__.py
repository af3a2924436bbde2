"""The gRPC transport: HTTP/2 and gRPC's wire protocol on Trio. It knows calls, messages (as bytes) and statuses, and nothing of
protobuf or of what a method does.

Read in this order: call.py (what handlers see), port.py (what connections share), connection.py (one connection, and the
shutdown); below them core/ (HTTP/2 and the call rules as state machines without I/O).
"""

from tpy.frontends.grpc.transport.call import (
    DEADLINE_TEXT,
    CallContext,
    Handlers,
    Metadata,
    Parts,
    StreamCall,
    StreamHandler,
    UnaryCall,
    UnaryHandler,
)
from tpy.frontends.grpc.transport.connection import serve_grpc
from tpy.frontends.grpc.transport.options import CompressionLevel, GrpcOptions
from tpy.frontends.transport import BoundAddress

__all__ = [
    "DEADLINE_TEXT",
    "BoundAddress",
    "CallContext",
    "CompressionLevel",
    "GrpcOptions",
    "Handlers",
    "Metadata",
    "Parts",
    "StreamCall",
    "StreamHandler",
    "UnaryCall",
    "UnaryHandler",
    "serve_grpc",
]
