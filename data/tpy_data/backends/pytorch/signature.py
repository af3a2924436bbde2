"""The arguments and results of a model, as far as its file says."""

from __future__ import annotations

import enum

import msgspec

from tpy.messages import DataType
from tpy_data.backends.signature import VARIABLE, shape_text

Shape = tuple[int, ...]


class ValueKind(enum.Enum):
    """The type of an argument or result in the model. The value is the word for people."""

    TENSOR = "Tensor"
    STRINGS = "List[str]"
    INTEGER = "int"
    FLOAT = "float"
    BOOLEAN = "bool"


class Argument(msgspec.Struct, frozen=True, kw_only=True):
    """An input. `path` is its name in Triton's words for packages (`ARGS[0]`, `KWARGS[mask]`). What the file does not say of
    tensors is None. One that is not `required` has a default in the model."""

    name: str
    kind: ValueKind = ValueKind.TENSOR
    required: bool = True
    path: str = ""
    datatype: DataType | None = None
    shape: Shape | None = None


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """An output. `key` is its key where the model returns a dict of tensors, `path` its name as in `Argument` (`RESULT[0]`)."""

    key: str = ""
    path: str = ""
    datatype: DataType | None = None
    shape: Shape | None = None


class Signature(msgspec.Struct, frozen=True, kw_only=True):
    """In the model's order.

    `takes_dict`: there is one input, a dict of tensors, whose keys are not known. `outputs` None: how many there are shows when
    the model runs; `gives_dict`: they are a dict then. `batch_max` is the largest first dimension that the file allows to the
    tensors whose first dimension is open, None for any.
    """

    inputs: tuple[Argument, ...] = ()
    outputs: tuple[Result, ...] | None = None
    takes_dict: bool = False
    gives_dict: bool = False
    batch_max: int | None = None

    @property
    def is_described(self) -> bool:
        """True when the types and shapes of all tensors are known."""
        tensors: tuple[Argument | Result, ...] = (*self.inputs, *(self.outputs or ()))
        return self.outputs is not None and all(each.datatype is not None and each.shape is not None for each in tensors)

    @property
    def batches(self) -> bool:
        """True when the first dimension of every tensor is open."""
        tensors: tuple[Argument | Result, ...] = (*self.inputs, *(self.outputs or ()))
        return all((each.shape or ())[:1] == (VARIABLE,) for each in tensors)

    def text(self) -> str:
        """As a line of Python."""
        inputs = ", ".join(f"{each.name}: {_type_text(each)}" for each in self.inputs)
        outputs = ", ".join(f"{each.key}: {_tensor_text(each)}".removeprefix(": ") for each in self.outputs or ())
        gives = "Dict[str, Tensor]" if self.gives_dict else "..." if self.outputs is None else f"({outputs})"
        return f"forward({'Dict[str, Tensor]' if self.takes_dict else inputs}) -> {gives}"


def _type_text(argument: Argument) -> str:
    text = _tensor_text(argument) if argument.kind is ValueKind.TENSOR else argument.kind.value
    return text if argument.required else f"{text} = ..."


def _tensor_text(tensor: Argument | Result) -> str:
    datatype = tensor.datatype.config_name if tensor.datatype is not None else "Tensor"
    return datatype if tensor.shape is None else f"{datatype}{shape_text(tensor.shape)}"
