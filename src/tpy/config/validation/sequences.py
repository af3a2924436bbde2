"""Rules of sequence_batching."""

from __future__ import annotations

from tpy.config.model_config import ControlKind, SequenceBatching, SequenceControl
from tpy.config.validation.batching import check_preferred_sizes
from tpy.config.validation.report import Report
from tpy.config.validation.states import check_states
from tpy.messages.datatypes import DataType

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
    check_states(report, batching.state)
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
    """Every control input has a name of its own."""
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
