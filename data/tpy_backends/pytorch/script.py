"""TorchScript: a module with its code and its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tpy.errors import Internal, TpyError, Unsupported
from tpy_backends.pytorch.program import Values, load_failure
from tpy_backends.pytorch.signature import ModuleInput, ModuleOutput, ModuleSignature, ValueKind

_KINDS = {
    "TensorType": ValueKind.TENSOR,
    "IntType": ValueKind.INTEGER,
    "FloatType": ValueKind.FLOAT,
    "BoolType": ValueKind.BOOLEAN,
}

_NO_OUTPUT = (
    "output must be of type Tensor, List[str] or Tuple containing one of these two types. It should not be a List / "
    "Dictionary of Tensors or a Scalar"
)


class ScriptProgram:
    """A `Program`. What a module keeps between calls is its own: instances that share one share that too."""

    def __init__(self, path: Path, model_name: str, device: torch.device | None) -> None:
        """Read the file; `device` None leaves the tensors on the devices that the file names.

        Raises Internal for what cannot be loaded, Unsupported for arguments that no request can give.
        """
        try:
            self._module = _load(path, device)
            schema = self._module.forward.schema
            self.signature = _signature(schema)
            self.writes_inputs, self.keeps_outputs = _effects(self._module)
        except TpyError:
            raise
        except Exception as error:
            raise load_failure(model_name, error) from error
        self._names = [argument.name for argument in self.signature.inputs]

    def run(self, values: Values) -> Sequence[Any] | Mapping[str, Any]:
        """Raises what the module raises, Internal for results that are not tensors."""
        if len(values) == len(self._names) or self.signature.takes_dict:
            made = self._module(*[values[position] for position in range(len(values))])
        else:
            made = self._module(**{self._names[position]: value for position, value in values.items()})
        if isinstance(made, torch.Tensor):
            return (made,)
        if isinstance(made, (tuple, dict)):
            return made
        if isinstance(made, list):
            return (made,) if all(isinstance(each, str) for each in made) else made
        raise Internal(_NO_OUTPUT)


def _load(path: Path, device: torch.device | None) -> Any:
    """The module. torchvision's operators, which Triton has built in, are there when that package is installed."""
    try:
        return torch.jit.load(str(path), map_location=device).eval()
    except RuntimeError as error:
        if "torchvision::" not in str(error) or find_spec("torchvision") is None:
            raise
    import_module("torchvision")
    return torch.jit.load(str(path), map_location=device).eval()


def _signature(schema: Any) -> ModuleSignature:
    arguments = schema.arguments
    if arguments and arguments[0].type.kind() == "ClassType":
        arguments = arguments[1:]
    outputs, gives_dict = _results(schema.returns[0].type)
    if len(arguments) == 1 and arguments[0].type.kind() == "DictType":
        return ModuleSignature(takes_dict=True, outputs=outputs, gives_dict=gives_dict)
    inputs = tuple(_argument(each) for each in arguments)
    return ModuleSignature(inputs=inputs, outputs=outputs, gives_dict=gives_dict)


def _argument(argument: Any) -> ModuleInput:
    """Raises Unsupported, with Triton's text, for a type that no tensor of a request can become."""
    given = argument.type
    if given.kind() == "OptionalType":
        given = given.getElementType()
    kind = _KINDS.get(given.kind())
    if given.kind() == "ListType" and given.getElementType().kind() == "StringType":
        kind = ValueKind.STRINGS
    if kind is None:
        raise Unsupported(
            f"An input of type '{argument.type}' was detected in the model. Only a single input of type Dict(str, Tensor) "
            "or input(s) of type Tensor are supported."
        )
    return ModuleInput(name=argument.name, kind=kind, required=not argument.has_default_value())


def _results(returned: Any) -> tuple[tuple[ModuleOutput, ...] | None, bool]:
    """The results that the module's type tells, and whether it returns a dict."""
    kind = returned.kind()
    if kind == "TupleType":
        return tuple(ModuleOutput() for _ in returned.elements()), False
    if kind == "TensorType":
        return (ModuleOutput(),), False
    return None, kind == "DictType"


def _effects(module: Any) -> tuple[bool, bool]:
    """Returns `writes_inputs` and `keeps_outputs`.

    By its graph with all calls inlined; where that cannot tell, the answer is yes.
    """
    graph = module.inlined_graph
    aliases = graph.alias_db()
    own, *inputs = graph.inputs()
    results = graph.outputs()
    writes = any(aliases.has_writers(value) for value in inputs)
    keeps = any(aliases.may_contain_alias(result, own) for result in results)
    return writes, keeps
