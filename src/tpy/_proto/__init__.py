"""Protocol Buffers classes of the server's own, in a descriptor pool of their own.

Clients register files of the same names (model_config.proto, grpc_service.proto) in protobuf's default pool when they are
imported; a second, different definition there makes the import fail. A private pool keeps both in one process.
"""

from tpy._proto.pool import POOL, build_pool, message_class, messages, request_class

__all__ = ["POOL", "build_pool", "message_class", "messages", "request_class"]
