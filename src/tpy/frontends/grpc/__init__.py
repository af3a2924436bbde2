"""The gRPC frontend: Triton's gRPC API on Trio.

transport/          HTTP/2 and gRPC's wire protocol: calls, messages as bytes, statuses
serving.py          the port, and who serves which method
infer.py, stream.py inference: one call without a task, and streams
codec/              inference messages to and from the server's own
own_services.py     the services and their handlers; late.py imports them for the first call
methods.py          their methods as handlers
control.py          every other method of GRPCInferenceService
health.py, reflection.py    gRPC's own services
"""

from tpy.frontends.grpc.options import GrpcFrontendOptions, GrpcServiceOptions
from tpy.frontends.grpc.serving import create_handlers, serve_grpc_services
from tpy.frontends.grpc.transport import BoundAddress, CompressionLevel, GrpcOptions

__all__ = [
    "BoundAddress",
    "CompressionLevel",
    "GrpcFrontendOptions",
    "GrpcOptions",
    "GrpcServiceOptions",
    "create_handlers",
    "serve_grpc_services",
]
