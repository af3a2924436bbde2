"""Sequences as backends see them: control tensors, and implicit state, which their requests hand on to each other.

The engine hangs one `SequenceState` on each sequence that a model with `sequence_batching.state` runs, and shows it to the
backend with every request of that sequence (`ExecutionRequest.state`). The backend feeds `values` to the model beside the
request's inputs, and puts what the model returned for the next request in their place, in whatever form suits its device: the
engine never looks. State tensors are neither in `inputs` nor to be among the outputs of a result.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tpy.config import ModelConfig
from tpy.config.model_config import ControlKind, SequenceControl
from tpy.errors import Internal
from tpy.messages import DataType


class SequenceState:
    """The state of one sequence, or of an empty place in a batch, whose state nobody sees again.

    `values` has one entry per `StateSpec.input_name`. In the first request of a sequence they are its initial state: numpy arrays
    of the spec's datatype (`bytes` objects for BYTES), read-only, shared by all sequences, with a first dimension of 1 when the
    model batches. From then on they are what the backend made of them: after an execution that succeeded it assigns a new
    mapping, and after one that failed nothing, so that the next request starts from the same state. What a model does not return
    keeps its value. Only the thread of the sequence's instance touches them. The values must not keep alive much more than
    themselves (a row of a batch's output is copied), and are let go when the sequence ends.
    """

    __slots__ = ("values",)

    def __init__(self, values: Mapping[str, object]) -> None:
        self.values = values


class StateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `sequence_batching.state`. `dims` are the model's, without a batch dimension; -1 is any size.

    `use_same_buffer_for_input_output` and `use_growable_memory` are not here: what a model returned is what it is fed next, in
    the same memory where the backend can, and may have another size each time.
    """

    input_name: str
    output_name: str
    datatype: DataType
    dims: tuple[int, ...]

    def require_fits(self, datatype: DataType, shape: Sequence[int], *, batching: bool) -> None:
        """Raises Internal when this is not a value of the state: `shape` is one sequence's, the batch dimension (1) included."""
        dims = (1, *self.dims) if batching else self.dims
        if datatype is not self.datatype:
            raise Internal(
                f"state '{self.output_name}' was returned with datatype {datatype.value}, expected {self.datatype.value}"
            )
        if len(shape) != len(dims) or any(want not in (-1, have) for have, want in zip(shape, dims, strict=True)):
            raise Internal(f"state '{self.output_name}' was returned with shape {list(shape)}, expected {list(dims)}")


def control_datatype(control: SequenceControl) -> DataType:
    """The type of a control tensor: of shape [1], behind a batch dimension when the model batches."""
    if control.kind is ControlKind.CONTROL_SEQUENCE_CORRID:
        return control.data_type
    if control.fp32_false_true:
        return DataType.FP32
    return DataType.BOOL if control.bool_false_true else DataType.INT32


def state_specs(config: ModelConfig) -> tuple[StateSpec, ...]:
    """The implicit states of a configuration, in its order."""
    batching = config.sequence_batching
    if batching is None:
        return ()
    return tuple(
        StateSpec(
            input_name=state.input_name,
            output_name=state.output_name,
            datatype=state.data_type,
            dims=state.dims,
        )
        for state in batching.state
    )
