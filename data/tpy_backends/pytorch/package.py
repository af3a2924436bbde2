"""AOTInductor packages (`torch._inductor.aoti_compile_and_package`): a shared library, compiled for one kind of processor."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from tpy.errors import TpyError
from tpy_backends.pytorch.program import Values, load_failure
from tpy_backends.pytorch.signature import read_call_spec

_MODEL = "model"
"""The name under which `aoti_compile_and_package` puts a program into a package."""


class PackageProgram:
    """A `Program`. The package neither tells types and shapes nor checks them: requests have those of the configuration."""

    writes_inputs = True  # The package does not tell.
    keeps_outputs = True  # The same.

    def __init__(self, path: Path, model_name: str, device: torch.device | None) -> None:
        """Raises Internal for what cannot be loaded: a package for another processor, operating system or version of PyTorch."""
        index = -1 if device is None or device.type == "cpu" else device.index
        try:
            self._loader = torch._C._aoti.AOTIModelPackageLoader(str(path), _MODEL, False, 1, index)
            inputs, outputs = self._loader.get_call_spec()
            self.signature = read_call_spec(inputs, outputs)
        except TpyError:
            raise
        except Exception as error:
            raise load_failure(model_name, error) from error

    def run(self, values: Values) -> Sequence[Any]:
        """Raises what the package raises."""
        made: Sequence[Any] = self._loader.boxed_run([values[position] for position in range(len(values))])
        return made
