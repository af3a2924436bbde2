"""Models that are functions of the program: their folders in a repository of the server's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from msgspec import structs

from tpy.config import format_pbtxt, parse_json
from tpy.config.model_config import ModelParameter
from tpy.errors import InvalidArgument
from tpy.messages import DataType
from tpy.messages.datatypes import BY_WORD, from_numpy
from tpy_data.backends.function import PARAMETER

TensorSpec = tuple[str, Any, Sequence[int]]
"""Name, data type (of NumPy, `str`, `bytes`, or a word of the protocol such as "FP32"), dims (-1 is any size)."""


def write_model(
    repository: Path,
    name: str,
    function: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    max_batch_size: int,
    config: Mapping[str, object],
) -> None:
    """Write the folder of a model of the backend `function`, of one version. Raises InvalidArgument for a wrong name or type."""
    if not isinstance(name, str) or not name or Path(name).name != name or name.startswith(".") or "\0" in name:
        raise InvalidArgument(f"a model's name is that of a folder, got {name!r}")
    document = {
        **({"dynamic_batching": {}} if max_batch_size > 0 and "sequence_batching" not in config else {}),
        **config,
        "name": name,
        "backend": "function",
        "max_batch_size": max_batch_size,
        "input": [_spec("input", spec) for spec in inputs],
        "output": [_spec("output", spec) for spec in outputs],
    }
    found = parse_json(orjson.dumps(document))
    parameters = {**found.parameters, PARAMETER: ModelParameter(string_value=function)}
    folder = repository / name
    (folder / "1").mkdir(parents=True, exist_ok=True)
    text = format_pbtxt(structs.replace(found, parameters=parameters))
    (folder / "config.pbtxt").write_text(text, encoding="utf-8")


def _spec(what: str, spec: TensorSpec) -> dict[str, object]:
    try:
        name, datatype, dims = spec
        dims = [int(dim) for dim in dims]
    except (TypeError, ValueError):
        raise InvalidArgument(f"an {what} is (name, data type, dims), got {spec!r}") from None
    return {"name": name, "data_type": _datatype(name, datatype).config_name, "dims": dims}


def _datatype(name: str, given: object) -> DataType:
    if isinstance(given, str) and given in BY_WORD:
        return BY_WORD[given]
    try:
        found = from_numpy(np.dtype(given))  # type: ignore[call-overload]  # whatever NumPy takes for a type
    except TypeError:
        found = DataType.INVALID
    if found is DataType.INVALID:
        raise InvalidArgument(f"'{name}': expected a type of NumPy, str, bytes, or one of {', '.join(BY_WORD)}; got {given!r}")
    return found
