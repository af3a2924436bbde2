"""Rules of sequence_batching, with its implicit state."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.config.model_config import ControlKind, InitialState, SequenceBatching, SequenceControl, SequenceState
from tpy.config.validation.batching import check_preferred_sizes
from tpy.config.validation.report import Report
from tpy.messages.datatypes import DataType


def _check_states(report: Report, states: Sequence[SequenceState]) -> None:
    """Each state has its own input, and at most one initial value, which fits it."""
    seen: set[str] = set()
    for index, state in enumerate(states):
        path = f"sequence_batching.state[{index}]"
        if state.input_name in seen:
            report.error(f"{path}.input_name", f"State input name '{state.input_name}' specified more than once.")
        seen.add(state.input_name)
        if len(state.initial_state) > 1:
            text = (
                f"initial_state field for state input '{state.input_name}' must contain exactly one or zero element. "
                f"Found '{len(state.initial_state)}' elements."
            )
            report.error(f"{path}.initial_state", text)
        for position, initial in enumerate(state.initial_state):
            _check_initial(report, state, initial, f"{path}.initial_state[{position}]")
        if state.use_growable_memory and not state.use_same_buffer_for_input_output:
            text = (
                "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name "
                f"'{state.input_name}'."
            )
            report.error(f"{path}.use_growable_memory", text)


def _check_initial(report: Report, state: SequenceState, initial: InitialState, path: str) -> None:
    name = state.input_name
    if initial.data_type is not state.data_type:
        text = f"The data type used for 'initial_state' field of state '{name}' does not match the state data type."
        report.error(f"{path}.data_type", text)
    if not initial.name:
        report.error(path, f"Field 'name' must be set when using initial_state for state input '{name}'.")
    if initial.zero_data is None and initial.data_file is None:
        report.error(path, f"initial_state setting expects state'{name}' to have state_data set")
    if len(initial.dims) != len(state.dims):
        text = (
            f"Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input '{name}'. "
            f"{len(initial.dims)} != {len(state.dims)}"
        )
        report.error(f"{path}.dims", text)
        return
    for index, (given, wanted) in enumerate(zip(initial.dims, state.dims, strict=True)):
        if given == -1:
            text = f"'initial_state' field for state input name '{name}' contains variable dimensions."
            report.error(f"{path}.dims[{index}]", text)
        elif wanted not in (-1, given):
            text = f"'initial_state' dim for input name '{name}' doesn't match 'state' dim description. {given} != {wanted}"
            report.error(f"{path}.dims[{index}]", text)


_CORRELATION_ID_TYPES = (DataType.UINT64, DataType.INT64, DataType.UINT32, DataType.INT32, DataType.BYTES)


def check_sequence_batching(report: Report) -> None:
    """Controls, their values, preferred sizes, slot utilisation, states, and names."""
    batching = report.config.sequence_batching
    if batching is None:
        return
    _check_control_tensors(report, batching)
    _check_controls(report, batching)
    if batching.oldest is not None:
        check_preferred_sizes(
            report,
            batching.oldest.preferred_batch_size,
            path="sequence_batching.oldest.preferred_batch_size",
            title="sequence batching preferred batch size",
        )
    if batching.direct is not None and not 0.0 <= batching.direct.minimum_slot_utilization <= 1.0:
        text = f"sequence batching minimum slot utilization must be in range (0.0, 1.0] for {report.config.name}"
        report.error("sequence_batching.direct.minimum_slot_utilization", text)
    _check_states(report, batching.state)
    _check_names(report, batching)


def _check_names(report: Report, batching: SequenceBatching) -> None:
    """Tensors that the server makes must not have the names of a request's. Triton allows it."""
    taken = {tensor.name: "an input" for tensor in report.config.input}
    for index, control in enumerate(batching.control_input):
        if control.name in taken:
            text = f"sequence batching control tensor '{control.name}' is {taken[control.name]} as well"
            report.error(f"sequence_batching.control_input[{index}].name", f"{text} for {report.config.name}")
    taken |= {control.name: "a control tensor" for control in batching.control_input}
    outputs: set[str] = set()
    for index, state in enumerate(batching.state):
        path = f"sequence_batching.state[{index}]"
        if state.input_name in taken:
            text = f"state input '{state.input_name}' is {taken[state.input_name]} as well"
            report.error(f"{path}.input_name", f"{text} for {report.config.name}")
        if state.output_name and state.output_name in outputs:
            text = f"state output '{state.output_name}' is specified more than once for {report.config.name}"
            report.error(f"{path}.output_name", text)
        outputs.add(state.output_name)


def _check_control_tensors(report: Report, batching: SequenceBatching) -> None:
    """Every control input has a different name."""
    seen: set[str] = set()
    for index, tensor in enumerate(batching.control_input):
        path = f"sequence_batching.control_input[{index}].name"
        if not tensor.name:
            report.error(path, f"sequence batching control tensor must have a name for {report.config.name}")
        elif tensor.name in seen:
            text = f"sequence batching control tensor '{tensor.name}' is specified for multiple control kinds"
            report.error(path, f"{text} for {report.config.name}")
        seen.add(tensor.name)


def _check_controls(report: Report, batching: SequenceBatching) -> None:
    """Each kind of control is given at most once, and in the form that its kind has."""
    seen: set[ControlKind] = set()
    for tensor_index, tensor in enumerate(batching.control_input):
        for index, control in enumerate(tensor.control):
            path = f"sequence_batching.control_input[{tensor_index}].control[{index}]"
            if control.kind in seen:
                text = f"sequence batching specifies multiple {control.kind.name} tensors for {report.config.name}"
                report.error(f"{path}.kind", text)
            seen.add(control.kind)
            if control.kind is ControlKind.CONTROL_SEQUENCE_CORRID:
                _check_correlation_id(report, control, path)
            else:
                _check_false_true(report, control, path)


def _check_false_true(report: Report, control: SequenceControl, path: str) -> None:
    """START, END and READY: one pair of values, the false one first."""
    of_kind = f"for {control.kind.name} for {report.config.name}"
    given = _given_pairs(control)
    if not given:
        text = "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true'"
        report.error(path, f"{text} {of_kind}")
    elif len(given) > 1:
        text = "sequence batching specifies more than one from 'int32_false_true', 'fp32_false_true' and 'bool_false_true'"
        report.error(path, f"{text} {of_kind}")
    else:
        name, count = given[0]
        if count != 2:
            text = f"sequence batching control '{name}' must have exactly 2 entries {of_kind}"
            report.error(f"{path}.{name}", text)


def _check_correlation_id(report: Report, control: SequenceControl, path: str) -> None:
    name = report.config.name
    if _given_pairs(control):
        text = "sequence batching must not specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true'"
        report.error(path, f"{text} for {control.kind.name} for {name}")
    if control.data_type not in _CORRELATION_ID_TYPES:
        text = (
            f"unexpected data type for control {control.kind.name} for {name}. "
            "Allowed data types are TYPE_UINT64, TYPE_INT64, TYPE_UINT32, TYPE_INT32 and TYPE_STRING"
        )
        report.error(f"{path}.data_type", text)


def _given_pairs(control: SequenceControl) -> list[tuple[str, int]]:
    """The `..._false_true` fields that are there, each with its number of entries."""
    counts = {
        "int32_false_true": len(control.int32_false_true),
        "fp32_false_true": len(control.fp32_false_true),
        "bool_false_true": len(control.bool_false_true),
    }
    return [(name, count) for name, count in counts.items() if count]
