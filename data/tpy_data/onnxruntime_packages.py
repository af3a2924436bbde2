"""Finds the installed distributions of ONNX Runtime. They share their files, so of two only the one installed last is whole."""

from __future__ import annotations

from importlib import metadata

CPU = "onnxruntime"
GPU = "onnxruntime-gpu"
_OTHERS = ("onnxruntime-directml", "onnxruntime-migraphx", "onnxruntime-openvino", "onnxruntime-qnn", "onnxruntime-rocm")


def installed_packages() -> dict[str, str]:
    """Distributions that bring the module `onnxruntime`, and their versions."""
    found = {}
    for name in (CPU, GPU, *_OTHERS):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def package_clash() -> str:
    """A text about conflicting installed distributions, with the command that repairs them; empty if there is no conflict."""
    found = installed_packages()
    if len(found) < 2:
        return ""
    wanted = next((name for name in found if name != CPU), CPU)
    return (
        f"{' and '.join(found)} are both installed and have overwritten each other's files, so providers are missing; "
        f"fix it with: pip uninstall -y {' '.join(found)} && pip install {wanted}"
    )
