"""Rules of model_warmup that can be checked without the model and its files."""

from __future__ import annotations

from tpy.config.problem import entry
from tpy.config.validation.report import Report
from tpy.messages.allowed import allowed_inputs, with_hint


def check_warmup(report: Report, *, complete: bool) -> None:
    """Every sample input has a size and something to fill it with, and is an input or a control tensor of the model."""
    config = report.config
    inputs = {tensor.name for tensor in config.input}
    if config.sequence_batching is not None:
        inputs |= {control.name for control in config.sequence_batching.control_input}
    for index, sample in enumerate(config.model_warmup):
        for name, given in sample.inputs.items():
            path = entry(f"model_warmup[{index}].inputs", name)
            if complete and name not in inputs:
                allowed = allowed_inputs((each.name, each.data_type, each.dims) for each in config.input)
                report.error(path, with_hint(f"unexpected inference input '{name}' for model '{config.name}'", allowed))
            if any(dim < 0 for dim in given.dims):
                text = f"warmup setting expects all variable-size dimensions are specified for input '{name}'"
                report.error(f"{path}.dims", text)
            if given.zero_data is None and given.random_data is None and given.input_data_file is None:
                report.error(path, f"warmup setting expects input '{name}' to have input_data_type set")
