"""Exported programs (`torch.export.save`): a graph that says what every tensor is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tpy.errors import TpyError, Unsupported
from tpy_backends.pytorch.program import Values, load_failure
from tpy_backends.pytorch.signature import ModuleInput, ModuleOutput, ModuleSignature, Shape, ValueKind
from tpy_backends.pytorch.tensors import DATATYPE_OF
from tpy_backends.signature import VARIABLE

_SCALARS: Mapping[type, ValueKind] = {int: ValueKind.INTEGER, float: ValueKind.FLOAT, bool: ValueKind.BOOLEAN}


class ExportedProgram:
    """A `Program`. Its operators run one by one, as in Python; `compile_options` compiles them, in the first runs."""

    def __init__(
        self, path: Path, model_name: str, device: torch.device | None, compile_options: Mapping[str, Any] | None
    ) -> None:
        """Raises Internal for what cannot be loaded, Unsupported for inputs and outputs that are not tensors of a known type."""
        try:
            exported = torch.export.load(str(path))
            if device is not None and device.type != "cpu":
                from torch.export.passes import move_to_device_pass

                exported = move_to_device_pass(exported, device)
            self.signature = _signature(exported)
            self.writes_inputs = self.keeps_outputs = _writes(exported)
            self._spec = exported.call_spec.in_spec
            module: Any = exported.module()
            self._module = module if compile_options is None else torch.compile(module, **compile_options)
        except TpyError:
            raise
        except Exception as error:
            raise load_failure(model_name, error) from error

    def run(self, values: Values) -> Sequence[Any]:
        """Raises what the program raises: a shape outside its constraints is an AssertionError."""
        args, kwargs = pytree.tree_unflatten([values[position] for position in range(len(values))], self._spec)
        made: Sequence[Any] = pytree.tree_leaves(self._module(*args, **kwargs))
        return made


def _signature(exported: Any) -> ModuleSignature:
    described = exported.graph_signature
    values = {node.name: node.meta.get("val") for node in exported.graph.nodes}
    input_names = [spec.arg.name for spec in described.input_specs if spec.kind.name == "USER_INPUT"]
    output_names = [spec.arg.name for spec in described.output_specs if spec.kind.name == "USER_OUTPUT"]
    in_paths = [_path(keys) for keys, _ in _leaves(exported.call_spec.in_spec)]
    in_paths = ["ARGS" + path[3:] if path.startswith("[0]") else "KWARGS" + path[3:] for path in in_paths]
    out_leaves = _leaves(exported.call_spec.out_spec)
    inputs = tuple(_argument(name, path, values.get(name)) for name, path in zip(input_names, in_paths, strict=True))
    outputs = tuple(_result(keys, values.get(name)) for name, (keys, _) in zip(output_names, out_leaves, strict=True))
    return ModuleSignature(
        inputs=inputs, outputs=outputs, batch_max=_batch_max(exported, [values.get(name) for name in input_names])
    )


def _writes(exported: Any) -> bool:
    """True when any operator writes in place: maybe an input, or a buffer of the program's own, which may be a result too."""
    effects = exported.graph_signature
    if effects.user_inputs_to_mutate or effects.buffers_to_mutate:
        return True
    schemas = (getattr(node.target, "_schema", None) for node in exported.graph.nodes if node.op == "call_function")
    return any(schema is not None and schema.is_mutable for schema in schemas)


def _leaves(spec: Any) -> list[tuple[Any, Any]]:
    """The places of a tree, in order."""
    numbered = pytree.tree_unflatten(range(spec.num_leaves), spec)
    leaves: list[tuple[Any, Any]] = pytree.tree_flatten_with_path(numbered)[0]
    return leaves


def _path(keys: Sequence[Any]) -> str:
    """`[0][mask]`: Triton's way to write a place in tuples, lists and dicts."""
    return "".join(f"[{_key(key)}]" for key in keys)


def _key(key: Any) -> str:
    return str(key.key) if isinstance(key, pytree.MappingKey) else str(getattr(key, "idx", getattr(key, "name", key)))


def _argument(name: str, path: str, value: Any) -> ModuleInput:
    """Raises Unsupported for what is neither a tensor of a known type nor a number."""
    if isinstance(value, torch.Tensor):
        datatype = DATATYPE_OF.get(value.dtype)
        if datatype is None:
            raise Unsupported(f"unsupported datatype {value.dtype} for input '{name}': the protocol has no such datatype")
        return ModuleInput(name=name, path=path, datatype=datatype, shape=_shape(value))
    kind = _SCALARS.get(type(value))
    raise Unsupported(
        f"input '{name}' of the exported program is {kind.value if kind else type(value).__name__}, not a tensor: a number "
        "is fixed when a program is exported; export it as a tensor, or close it over"
    )


def _result(keys: Sequence[Any], value: Any) -> ModuleOutput:
    """As `_argument`."""
    path = f"RESULT{_path(keys)}"
    if not isinstance(value, torch.Tensor) or value.dtype not in DATATYPE_OF:
        what = value.dtype if isinstance(value, torch.Tensor) else type(value).__name__
        raise Unsupported(f"output '{path}' of the exported program is {what}: the protocol has no such datatype")
    key = keys[0].key if len(keys) == 1 and isinstance(keys[0], pytree.MappingKey) and isinstance(keys[0].key, str) else ""
    return ModuleOutput(key=key, path=path, datatype=DATATYPE_OF[value.dtype], shape=_shape(value))


def _shape(value: torch.Tensor) -> Shape:
    return tuple(size if isinstance(size, int) else VARIABLE for size in value.shape)


def _batch_max(exported: Any, inputs: Sequence[Any]) -> int | None:
    """The smallest of the largest sizes that the constraints of the open first dimensions allow."""
    largest = []
    for value in inputs:
        size = value.shape[0] if isinstance(value, torch.Tensor) and value.ndim else 0
        if isinstance(size, int):
            continue
        allowed = exported.range_constraints.get(size.node.expr)
        upper = None if allowed is None else allowed.upper
        if upper is not None and upper.is_Integer and int(upper) < 2**31:  # PyTorch's integer infinity calls itself finite
            largest.append(int(upper))
    return min(largest, default=None)
