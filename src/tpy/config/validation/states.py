"""Rules of implicit state: sequence_batching.state."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.config.model_config import InitialState, SequenceState
from tpy.config.validation.report import Report


def check_states(report: Report, states: Sequence[SequenceState]) -> None:
    """Each state has an input of its own, and at most one initial value, which fits it."""
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
