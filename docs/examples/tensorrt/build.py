"""Builds an engine of TensorRT from an ONNX model: python build.py model.onnx models/NAME/1/model.plan [--fp16] [--batch 1 8 64].

With TensorRT itself it needs the GPU that is to serve the engine. TensorRT for RTX needs none; its engine is for GPUs of compute
capability 8.9 unless --capability says another (SM120, say).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

try:
    import tensorrt as trt
except ImportError:
    import tensorrt_rtx as trt


def build(model: Path, batches: list[list[int]], *, fp16: bool, capability: str) -> bytes:
    """Returns the engine, with an optimization profile for each (smallest, best, largest) batch size."""
    logger = trt.Logger(trt.Logger.WARNING)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    parser = trt.OnnxParser(network, logger)
    if not parser.parse_from_file(str(model)):
        sys.exit("\n".join(str(parser.get_error(index)) for index in range(parser.num_errors)))
    config = builder.create_builder_config()
    if trt.__name__ == "tensorrt_rtx":
        config.num_compute_capabilities = 1
        config.set_compute_capability(getattr(trt.ComputeCapability, capability), 0)
    elif fp16 and hasattr(trt.BuilderFlag, "FP16"):
        config.set_flag(trt.BuilderFlag.FP16)  # from TensorRT 11 on, types are those of the ONNX model
    for sizes in batches:
        profile = builder.create_optimization_profile()
        for index in range(network.num_inputs):
            given = network.get_input(index)
            if -1 in given.shape:
                profile.set_shape(given.name, *(tuple(size if dim == -1 else dim for dim in given.shape) for size in sizes))
        config.add_optimization_profile(profile)
    engine = builder.build_serialized_network(network, config)
    if engine is None:
        sys.exit("TensorRT built no engine")
    return bytes(engine)


if __name__ == "__main__":
    arguments = argparse.ArgumentParser()
    arguments.add_argument("model", type=Path)
    arguments.add_argument("plan", type=Path)
    arguments.add_argument("--fp16", action="store_true")
    arguments.add_argument("--capability", default="SM89")
    arguments.add_argument("--batch", type=int, nargs=3, action="append", metavar=("SMALLEST", "BEST", "LARGEST"))
    given = arguments.parse_args()
    content = build(given.model, given.batch or [[1, 8, 64]], fp16=given.fp16, capability=given.capability)
    given.plan.parent.mkdir(parents=True, exist_ok=True)
    given.plan.write_bytes(content)
    print(f"wrote {given.plan} ({len(content)} bytes) with {trt.__name__} {trt.__version__}")
