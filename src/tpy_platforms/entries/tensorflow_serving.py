"""The TensorFlow Serving frontend's entries in the table: its REST port and its gRPC port."""

from tpy.flag import PORT_MAX, new_flag
from tpy.frontends.table import Frontend

_GROUP = "TensorFlow Serving"
_SWITCH = "allow-tensorflow-serving"
_ALLOW = new_flag(_GROUP, _SWITCH, False, "Serve TensorFlow Serving's protocol: REST at the address of HTTP, and gRPC at gRPC's.")
_REST = new_flag(_GROUP, "tensorflow-serving-port", 8501, "Port of REST; 0 takes a free one.", minimum=0, maximum=PORT_MAX)
_GRPC = new_flag(_GROUP, "tensorflow-serving-grpc-port", 8500, "Port of gRPC; 0 takes a free one.", minimum=0, maximum=PORT_MAX)

FRONTEND = Frontend(
    name="TensorFlow Serving",
    service="TensorFlow Serving HTTPService",
    module="tpy_platforms.tensorflow_serving.rest",
    switch=_SWITCH,
    flags=(_ALLOW, _REST),
    checks_access=True,
)

GRPC = Frontend(
    name="TensorFlow Serving gRPC",
    service="TensorFlow Serving GRPCService",
    module="tpy_platforms.tensorflow_serving.grpc",
    switch=_SWITCH,
    flags=(_GRPC,),
    checks_access=True,
)
