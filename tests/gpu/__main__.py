"""`make test-gpu`: runs the tests of this folder where there is a GPU, says which wheels are missing for the rest of them, and
skips them with a reason where there is none. Fetches nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

from tpy.devices.cuda import load_driver
from tpy.errors import Unavailable

WHEELS: Mapping[str, str] = {
    "pytest": "pytest pytest-trio",
    "torch": "torch (a build with CUDA)",
    "onnxruntime": "onnxruntime-gpu",
    "tensorrt": "tensorrt, or tensorrt-rtx-cu13",
    "pynvml": "nvidia-ml-py",
}
"""The wheels that the tests use, by the module that tells whether one is there."""

_INSTEAD = {"tensorrt": "tensorrt_rtx"}


def missing(found: Callable[[str], object] = find_spec) -> list[str]:
    """Returns the wheels that are not installed."""
    return [wheel for name, wheel in WHEELS.items() if not found(name) and not found(_INSTEAD.get(name, name))]


def main(load: Callable[[], object] = load_driver) -> int:
    """Returns the exit status."""
    wheels = missing()
    if wheels:
        print(
            f"test-gpu: not installed, tests that need them are skipped: {'; '.join(wheels)}. With a network: pip install NAME; "
            "without: pip install --no-index --find-links FOLDER NAME"
        )
    try:
        load()
    except Unavailable as error:
        print(f"test-gpu: skipped: {error.message}")
        return 0
    if WHEELS["pytest"] in wheels:
        return 1
    import pytest

    return int(pytest.main(["-rs", str(Path(__file__).parent)]))


if __name__ == "__main__":
    sys.exit(main())
