"""The arguments and results of a model, as far as its file says; and the calling convention of an AOTInductor package: what it
takes and gives, as trees of tensors in JSON."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson

from tpy.errors import Internal, Unsupported
from tpy.messages import DataType
from tpy_backends.signature import VARIABLE, shape_text

Shape = tuple[int, ...]


class ValueKind(enum.Enum):
    """The type of an argument or result in the model. The value is the word for people."""

    TENSOR = "Tensor"
    STRINGS = "List[str]"
    INTEGER = "int"
    FLOAT = "float"
    BOOLEAN = "bool"


class ModuleInput(msgspec.Struct, frozen=True, kw_only=True):
    """An input. `path` is its name in Triton's words for packages (`ARGS[0]`, `KWARGS[mask]`). What the file does not say of
    tensors is None. One that is not `required` has a default in the model."""

    name: str
    kind: ValueKind = ValueKind.TENSOR
    required: bool = True
    path: str = ""
    datatype: DataType | None = None
    shape: Shape | None = None


class ModuleOutput(msgspec.Struct, frozen=True, kw_only=True):
    """An output. `key` is its key where the model returns a dict of tensors, `path` its name as in `ModuleInput`
    (`RESULT[0]`)."""

    key: str = ""
    path: str = ""
    datatype: DataType | None = None
    shape: Shape | None = None


class ModuleSignature(msgspec.Struct, frozen=True, kw_only=True):
    """In the model's order.

    `takes_dict`: there is one input, a dict of tensors, whose keys are not known. `outputs` None: how many there are shows when
    the model runs; `gives_dict`: they are a dict then. `batch_max` is the largest first dimension that the file allows to the
    tensors whose first dimension is open, None for any.
    """

    inputs: tuple[ModuleInput, ...] = ()
    outputs: tuple[ModuleOutput, ...] | None = None
    takes_dict: bool = False
    gives_dict: bool = False
    batch_max: int | None = None

    @property
    def is_described(self) -> bool:
        """True when the types and shapes of all tensors are known."""
        tensors: tuple[ModuleInput | ModuleOutput, ...] = (*self.inputs, *(self.outputs or ()))
        return self.outputs is not None and all(each.datatype is not None and each.shape is not None for each in tensors)

    @property
    def batches(self) -> bool:
        """True when the first dimension of every tensor is open."""
        tensors: tuple[ModuleInput | ModuleOutput, ...] = (*self.inputs, *(self.outputs or ()))
        return all((each.shape or ())[:1] == (VARIABLE,) for each in tensors)

    def text(self) -> str:
        """As a line of Python."""
        inputs = ", ".join(f"{each.name}: {_type_text(each)}" for each in self.inputs)
        outputs = ", ".join(f"{each.key}: {_tensor_text(each)}".removeprefix(": ") for each in self.outputs or ())
        gives = "Dict[str, Tensor]" if self.gives_dict else "..." if self.outputs is None else f"({outputs})"
        return f"forward({'Dict[str, Tensor]' if self.takes_dict else inputs}) -> {gives}"


def _type_text(argument: ModuleInput) -> str:
    text = _tensor_text(argument) if argument.kind is ValueKind.TENSOR else argument.kind.value
    return text if argument.required else f"{text} = ..."


def _tensor_text(tensor: ModuleInput | ModuleOutput) -> str:
    datatype = tensor.datatype.config_name if tensor.datatype is not None else "Tensor"
    return datatype if tensor.shape is None else f"{datatype}{shape_text(tensor.shape)}"


def read_call_spec(inputs: str, outputs: str) -> ModuleSignature:
    """The signature in what a package says of its calling convention. Raises Internal for a version that is not known,
    Unsupported for anything but tuples, lists and dicts of tensors."""
    (args, kwargs), results = _tree(inputs)["children_spec"], _tree(outputs)
    paths = [("ARGS", path) for path in _paths(args)] + [("KWARGS", path) for path in _paths(kwargs)]
    arguments = tuple(
        ModuleInput(name=_argument_name(word, path, position), path=word + _text(path))
        for position, (word, path) in enumerate(paths)
    )
    gives = results.get("type") == "builtins.dict"
    return ModuleSignature(
        inputs=arguments,
        outputs=tuple(
            ModuleOutput(path=f"RESULT{_text(path)}", key=path[0] if gives and len(path) == 1 else "") for path in _paths(results)
        ),
    )


def _argument_name(word: str, path: Sequence[str], position: int) -> str:
    """A keyword's own name. Others have lost theirs."""
    return path[0] if word == "KWARGS" and len(path) == 1 else f"INPUT__{position}"


def _tree(text: str) -> dict[str, Any]:
    try:
        version, tree = orjson.loads(text)
    except (ValueError, TypeError) as error:
        raise Internal(f"the package's call specification cannot be read: {error}") from error
    if version != 1 or not isinstance(tree, dict):
        raise Internal(f"the package's call specification has version {version}, expected 1")
    return tree


def _paths(tree: dict[str, Any]) -> list[tuple[str, ...]]:
    """The places of all tensors in a tree, in order."""
    kind = tree.get("type")
    if kind is None:
        return [()]
    children = tree["children_spec"]
    if kind in ("builtins.tuple", "builtins.list"):
        keys = [str(number) for number in range(len(children))]
    elif kind == "builtins.dict":
        context = tree["context"]
        keys = [str(key) for key in (orjson.loads(context) if isinstance(context, str) else context)]
    else:
        raise Unsupported(
            f"the package takes or gives values of type '{kind}': only dicts, tuples and lists of tensors are supported"
        )
    return [(key, *rest) for key, child in zip(keys, children, strict=True) for rest in _paths(child)]


def _text(path: Sequence[str]) -> str:
    return "".join(f"[{key}]" for key in path)
