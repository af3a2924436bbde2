"""Rules of ensemble_scheduling that can be checked without the models of its steps: is every tensor written and read?"""

from __future__ import annotations

from collections import deque

from tpy.config.model_config import EnsembleScheduling, EnsembleStep
from tpy.config.problem import entry
from tpy.config.resolve import ENSEMBLE_PLATFORM
from tpy.config.validation.report import Report


class _Tensor:
    """An ensemble tensor: what must be there before it is, and what waits for it. `path` is where it is first named."""

    def __init__(self, name: str, path: str) -> None:
        self.name = name
        self.path = path
        self.is_written = False
        self.ready = False
        self.sources: list[_Tensor] = []
        self.readers: list[_Tensor] = []


def check_ensemble(report: Report) -> None:
    """Check the settings of an ensemble, its steps, and the flow of its tensors."""
    config = report.config
    scheduling = config.ensemble_scheduling
    if scheduling is None:
        if config.platform == ENSEMBLE_PLATFORM:
            text = f"ensemble scheduling must be set for ensemble {config.name} whose platform is {ENSEMBLE_PLATFORM}"
            report.error("platform", text)
        return
    if config.platform != ENSEMBLE_PLATFORM:
        text = f"ensemble scheduling cannot be set for model '{config.name}' whose platform is not {ENSEMBLE_PLATFORM}"
        report.error("ensemble_scheduling", text)
    if config.instance_group:
        report.error("instance_group", f"instance group should not be specified for ensemble '{config.name}'")
    if config.optimization is not None:
        report.error("optimization", f"optimization should not be specified for ensemble '{config.name}'")
    if config.model_warmup:
        report.error("model_warmup", f"model_warmup can not be specified for ensemble '{config.name}'")
    if not scheduling.step:
        report.error("ensemble_scheduling", f"must specify 'step' for ensemble '{config.name}'")
        return
    for index, step in enumerate(scheduling.step):
        _check_step(report, step, index)
    if all(step.input_map and step.output_map for step in scheduling.step):
        tensors = _connect(report, scheduling)
        _mark_ready(report, tensors)
        _check_outputs(report, tensors)


def _connect(report: Report, scheduling: EnsembleScheduling) -> dict[str, _Tensor]:
    """The tensors by name, in the order in which the steps name them."""
    tensors: dict[str, _Tensor] = {}
    for index, step in enumerate(scheduling.step):
        path = f"ensemble_scheduling.step[{index}]"
        written = []
        for key, name in step.output_map.items():
            place = entry(f"{path}.output_map", key)
            tensor = tensors.setdefault(name, _Tensor(name, place))
            if tensor.is_written:
                text = f"ensemble tensor '{name}' can appear in an output map only once for ensemble '{report.config.name}'"
                report.error(place, f"{text} step {index}")
            tensor.is_written = True
            written.append(tensor)
        for key, name in step.input_map.items():
            read = tensors.setdefault(name, _Tensor(name, entry(f"{path}.input_map", key)))
            for tensor in written:
                tensor.sources.append(read)
                read.readers.append(tensor)
    return tensors


def _check_step(report: Report, step: EnsembleStep, index: int) -> None:
    path = f"ensemble_scheduling.step[{index}]"
    of_ensemble = f"in step {index} of ensemble '{report.config.name}'"
    if not step.model_name:
        report.error(path, f"must specify 'model_name' {of_ensemble}")
    if not step.input_map:
        report.error(path, f"must specify 'input_map' {of_ensemble}")
    if not step.output_map:
        report.error(path, f"must specify 'output_map' {of_ensemble}")
    if step.model_version == 0:
        report.warning(f"{path}.model_version", f"step {index} asks for version 0 of '{step.model_name}'; the latest would be -1")


def _mark_ready(report: Report, tensors: dict[str, _Tensor]) -> None:
    """Follow the data from the ensemble's inputs as far as it flows."""
    waiting: deque[_Tensor] = deque()
    for index, tensor in enumerate(report.config.input):
        node = tensors.get(tensor.name)
        if node is None:
            # The quote is Triton's.
            text = f"ensemble input '{tensor.name}' for ensemble {report.config.name}' is not used"
            report.error(f"input[{index}]", text)
        elif not node.ready:
            node.ready = True
            waiting.append(node)
    while waiting:
        for reader in waiting.popleft().readers:
            if not reader.ready and all(source.ready for source in reader.sources):
                reader.ready = True
                waiting.append(reader)


def _check_outputs(report: Report, tensors: dict[str, _Tensor]) -> None:
    """Every output of the ensemble is written, and every other written tensor is read."""
    name = report.config.name
    outputs: set[str] = set()
    all_written = True
    for index, output in enumerate(report.config.output):
        node = tensors.get(output.name)
        if node is None:
            report.error(f"output[{index}]", f"ensemble output '{output.name}' for ensemble {name}' is not used")
            continue
        outputs.add(output.name)
        if not node.ready:
            all_written = False
            text = f"output '{output.name}' for ensemble '{name}' is not written"
            missing = _not_connected(node)
            if missing is not node:
                text += f": at least one of its depending tensors, '{missing.name}', is not connected"
            report.error(f"output[{index}]", text)
    for node in tensors.values():
        if node.name in outputs:
            continue
        # Where an output is not written, the tensors before it are not ready for the same reason: said once.
        if (not node.ready and all_written) or not node.readers:
            report.error(node.path, f"ensemble tensor '{node.name}' is unused in ensemble '{name}'")


def _not_connected(node: _Tensor) -> _Tensor:
    """The tensor at the beginning of the chain that keeps `node` from being written; `node` when it is that itself."""
    seen = {node.name}
    while True:
        before = next((source for source in node.sources if not source.ready and source.name not in seen), None)
        if before is None:
            return node
        seen.add(before.name)
        node = before
