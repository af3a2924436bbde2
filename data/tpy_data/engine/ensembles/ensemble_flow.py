"""EnsembleFlow: an ensemble's graph with the models of its steps bound to it, and how tensors get from one to the next.
Immutable.

Names and shapes are dealt with here: a tensor has the name that its consumer gives it, and its batch dimension is added or
taken off where a model that batches and one that does not meet. Arrays are passed on, never copied; those on a device stay there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tpy.config import ModelConfig
from tpy.config.model_config import EnsembleStep
from tpy.errors import InvalidArgument
from tpy.messages import InferenceRequest, InferenceResponse, ParameterValue, Residency, SequencePosition, Tensor
from tpy_data.engine.admission.shapes import Dims, fits
from tpy_data.engine.ensembles.ensemble_members import LATEST
from tpy_data.engine.serving.served_copy import ServedCopy
from tpy_data.engine.serving.serving_table import Answering
from tpy_data.schedulers.core.ensemble_graph import EnsembleGraph, GraphStep

_Array = np.ndarray[Any, Any]
_Convert = Callable[[_Array], _Array]


class Flowing(NamedTuple):
    """A tensor between steps. `sequence` is what its step's response said that it belongs to; None: the ensemble's request."""

    tensor: Tensor
    sequence: SequencePosition | None


class _Feed(NamedTuple):
    """One input of a step: which of the step's tensors it is (by position), its name there, and what is done to its array."""

    position: int
    name: str
    convert: _Convert | None


class FlowStep:
    """A step, ready to run. `outputs` are the names of the model's outputs, in the order of the graph's tensors."""

    __slots__ = ("_answers", "_feeds", "_name", "_residency", "_version", "outputs", "submit")

    def __init__(
        self,
        step: EnsembleStep,
        member: ServedCopy,
        answering: Answering,
        feeds: Sequence[_Feed],
        answers: Mapping[str, str],
    ) -> None:
        """`answering` takes its requests. `answers`: outputs of the model that are outputs of the ensemble, and their names
        there. All others go to other steps: they may stay on a device."""
        self.submit = answering.submit
        self.outputs = tuple(step.output_map)
        self._name = step.model_name
        # Without a number for the newest one, as clients ask: a sequence goes on in the version that it began in.
        self._version = None if step.model_version == LATEST else member.version
        self._feeds = tuple(feeds)
        self._answers = answers
        self._residency = Residency(outputs=frozenset(name for name in step.output_map if name not in answers))

    def request(self, caller: InferenceRequest, inputs: Sequence[object], deadline_ns: int | None) -> InferenceRequest:
        """The step's request: what the ensemble's caller said goes for every step. `inputs` are Flowing or None, as
        `EnsembleCore` hands them out."""
        tensors = []
        sequence = None
        on_device = False
        for position, name, convert in self._feeds:
            flowing = inputs[position]
            if isinstance(flowing, Flowing):
                tensor = flowing.tensor
                array = tensor.array if convert is None else convert(tensor.array)
                tensors.append(Tensor(name, tensor.datatype, array))
                sequence = sequence or flowing.sequence
                on_device = on_device or not isinstance(array, np.ndarray)
        residency = self._residency
        if on_device or caller.residency is not None:
            residency = self._residency_for(caller.residency, on_device)
        return InferenceRequest(
            model_name=self._name,
            model_version=self._version,
            id=caller.id,
            inputs=tuple(tensors),
            requested_outputs=self.outputs,
            parameters=caller.parameters,
            sequence=sequence or caller.sequence,
            priority=caller.priority,
            timeout_us=caller.timeout_us,
            deadline_ns=deadline_ns,
            received_ns=caller.received_ns,
            residency=residency,
            record=None if caller.record is None else caller.record.child("step", self._name),
            tenant=caller.tenant,
            is_call=True,
        )

    def _residency_for(self, caller: Residency | None, on_device: bool) -> Residency:
        """Outputs that the ensemble's caller takes on a device are left there, too."""
        kept = () if caller is None else (name for name, answer in self._answers.items() if caller.keeps(answer))
        return Residency(on_device, (self._residency.outputs or frozenset()).union(kept))

    def values(self, response: InferenceResponse, sequence: SequencePosition | None) -> list[Flowing | None]:
        """The values of a response for the step's tensors; None where it has no such output. Raises InvalidArgument for
        parameters that make no sense."""
        sequence = _sequence_of(response.parameters, sequence) if response.parameters else sequence
        outputs = response.outputs
        if len(outputs) == 1 == len(self.outputs) and outputs[0].name == self.outputs[0]:
            return [Flowing(outputs[0], sequence)]
        made = {tensor.name: tensor for tensor in outputs}
        return [None if (tensor := made.get(name)) is None else Flowing(tensor, sequence) for name in self.outputs]


class EnsembleFlow:
    """`output_names` are the ensemble's outputs by tensor. Make it of a configuration and members that `check_members`
    approves; `answering` is what takes the requests of each."""

    __slots__ = ("_converts", "_output_numbers", "graph", "output_names", "steps")

    def __init__(self, config: ModelConfig, members: Sequence[ServedCopy], answering: Sequence[Answering]) -> None:
        scheduling = config.ensemble_scheduling
        steps = () if scheduling is None else scheduling.step
        numbers: dict[str, int] = {}
        for name in (
            *(entry.name for entry in config.input),
            *(entry.name for entry in config.output),
            *(name for step in steps for name in (*step.input_map.values(), *step.output_map.values())),
        ):
            numbers.setdefault(name, len(numbers))
        batching = config.max_batch_size > 0
        # Whether a tensor comes with a batch dimension is up to its producer.
        batched = {entry.name: batching for entry in config.input}
        for step, member in zip(steps, members, strict=True):
            batched.update(dict.fromkeys(step.output_map.values(), member.config.max_batch_size > 0))
        self.graph = EnsembleGraph(
            [_graph_step(step, member, numbers) for step, member in zip(steps, members, strict=True)],
            inputs=[numbers[entry.name] for entry in config.input],
            outputs=list(
                dict.fromkeys([numbers[entry.name] for entry in config.output])
            ),  # one that is listed twice is answered once
            tensor_count=len(numbers),
        )
        answers = {entry.name for entry in config.output}
        self.steps = tuple(
            FlowStep(step, member, takes, _feeds(step, member, batched), _answers(step, answers))
            for step, member, takes in zip(steps, members, answering, strict=True)
        )
        self.output_names = {numbers[entry.name]: entry.name for entry in config.output}
        self._output_numbers = {name: number for number, name in self.output_names.items()}
        self._converts = {
            numbers[entry.name]: _conversion(
                entry.dims if entry.reshape is None else entry.reshape.shape, made=batched[entry.name], wanted=batching
            )
            for entry in config.output
        }

    def numbers_of(self, outputs: Sequence[str]) -> list[int]:
        """The tensors of the ensemble's outputs of these names."""
        return [self._output_numbers[name] for name in outputs]

    def outputs(self, tensors: Sequence[int], values: Sequence[object]) -> list[Tensor]:
        """The ensemble's outputs, from what an answer of `EnsembleCore` holds for these tensors."""
        found = []
        for number, flowing in zip(tensors, values, strict=True):
            if isinstance(flowing, Flowing):
                tensor, convert = flowing.tensor, self._converts[number]
                array = tensor.array if convert is None else convert(tensor.array)
                found.append(Tensor(self.output_names[number], tensor.datatype, array))
        return found


def sequence_of(inputs: Sequence[object]) -> SequencePosition | None:
    """The sequence that the step that takes these belongs to, when a response said so."""
    return next((value.sequence for value in inputs if isinstance(value, Flowing) and value.sequence is not None), None)


def _graph_step(step: EnsembleStep, member: ServedCopy, numbers: Mapping[str, int]) -> GraphStep:
    return GraphStep(
        inputs=tuple(numbers[name] for name in dict.fromkeys(step.input_map.values())),
        outputs=tuple(numbers[name] for name in step.output_map.values()),
        decoupled=member.config.decoupled,
    )


def _answers(step: EnsembleStep, outputs: Container[str]) -> Mapping[str, str]:
    return {name: tensor for name, tensor in step.output_map.items() if tensor in outputs}


def _feeds(step: EnsembleStep, member: ServedCopy, batched: Mapping[str, bool]) -> list[_Feed]:
    positions = {name: position for position, name in enumerate(dict.fromkeys(step.input_map.values()))}
    dims = {entry.name: entry.dims for entry in member.config.input}
    batching = member.config.max_batch_size > 0
    return [
        _Feed(positions[tensor], name, _conversion(dims[name], made=batched[tensor], wanted=batching))
        for name, tensor in step.input_map.items()
    ]


def _conversion(dims: Dims, *, made: bool, wanted: bool) -> _Convert | None:
    """Between models of which only one batches. A tensor whose shape fits as it is, is passed on as it is."""
    if made == wanted:
        return None

    def add_batch(array: _Array) -> _Array:
        return array[np.newaxis] if fits(array.shape, dims) else array

    def take_off_batch(array: _Array) -> _Array:
        return array[0] if not fits(array.shape, dims) and array.shape[:1] == (1,) else array

    return add_batch if wanted else take_off_batch


def _sequence_of(parameters: Mapping[str, ParameterValue], sequence: SequencePosition | None) -> SequencePosition | None:
    """The sequence that a response says its tensors belong to: sequence_id, sequence_start, sequence_end. Raises InvalidArgument
    for one that cannot mean that."""
    if not parameters.keys() & {"sequence_id", "sequence_start", "sequence_end"}:
        return sequence
    correlation_id = parameters.get("sequence_id", 0 if sequence is None else sequence.correlation_id)
    if isinstance(correlation_id, bool) or not isinstance(correlation_id, (int, str)):
        raise InvalidArgument(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
        )
    flags = {}
    for name in ("sequence_start", "sequence_end"):
        flag = parameters.get(name, False)
        if not isinstance(flag, bool):
            raise InvalidArgument(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
        flags[name] = flag
    return SequencePosition(correlation_id=correlation_id, start=flags["sequence_start"], end=flags["sequence_end"])
