"""The program that serializes a pipeline of a Python file: `serializing.py FILE TARGET`. It is run apart, because the file is its
author's program; `source` starts it.

The one function that `@autoserialize` marks makes the pipeline, as in Triton. Without a GPU it is made for the CPU, whatever its
`device_id` says.
"""

from __future__ import annotations

import importlib.util
import sys


def main(path: str, target: str) -> None:
    """Raises what the file raises, and RuntimeError unless one function is marked."""
    from nvidia.dali import backend_impl
    from nvidia.dali._utils.autoserialize import _discover_autoserialize, invoke_autoserialize

    spec = importlib.util.spec_from_file_location("autoserialize_mod", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    marked = _discover_autoserialize(module, visited=[])
    if backend_impl.GetCUDADeviceCount() or len(marked) != 1:
        invoke_autoserialize(module, target)
    else:
        marked[0](device_id=None).serialize(filename=target)


if __name__ == "__main__":
    main(*sys.argv[1:])
