"""All rules, in the order in which Triton applies them; and those for the configuration as a whole."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from typing import Final

from tpy.config import aliases, describe, not_ready_after, on_demand, rollout
from tpy.config.histograms import DEFAULT_BUCKETS
from tpy.config.instance_groups import check_instance_groups
from tpy.config.known_backends import PLATFORMS_OF_BACKEND, TENSORRT_PLAN
from tpy.config.model_config import ModelConfig, ModelPriority, Optimization
from tpy.config.problem import NO_SOURCE, Problem, Source, entry
from tpy.config.request_timeout import PARAMETER, RequestTimeout
from tpy.config.resolve import ENSEMBLE_PLATFORM
from tpy.config.validation.batching import check_dynamic_batching
from tpy.config.validation.report import Report
from tpy.config.validation.tensors import check_batch_io, check_tensors
from tpy.limits import HISTOGRAM_BUCKETS_MAX
from tpy.messages.allowed import allowed_inputs, with_hint

_BATCH_STRATEGY = "TRITON_BATCH_STRATEGY_PATH"
_TUNING = ("batching", "target_p99_ms", "max_padding", "padding_input")


def _check_effects(report: Report) -> None:
    """Refuse a batching strategy for sequences; warn about settings without effect."""
    if _BATCH_STRATEGY in report.config.parameters and report.config.sequence_batching is not None:
        text = f"{_BATCH_STRATEGY} cannot be specified with sequence batcher, using default batching strategy"
        report.error(entry("parameters", _BATCH_STRATEGY), text, expected="the parameter to be left out")
    for path in _without_effect(report.config):
        report.warning(path, f"'{path.rpartition('.')[2].partition('[')[0]}' has no effect in this server")


def _without_effect(config: ModelConfig) -> Iterator[str]:
    if config.optimization is not None:
        yield from _optimization_without_effect(config.optimization, tensorrt=config.platform == TENSORRT_PLAN)


def _optimization_without_effect(optimization: Optimization, *, tensorrt: bool) -> Iterator[str]:
    if optimization.priority is not ModelPriority.PRIORITY_DEFAULT and not tensorrt:
        yield "optimization.priority"
    cuda = optimization.cuda
    if cuda is not None and not tensorrt:
        yield "optimization.cuda"
    elif cuda is not None:
        if cuda.busy_wait_events:
            yield "optimization.cuda.busy_wait_events"
        if cuda.output_copy_stream:
            yield "optimization.cuda.output_copy_stream"
    if optimization.gather_kernel_buffer_threshold:
        yield "optimization.gather_kernel_buffer_threshold"
    if optimization.eager_batching:
        yield "optimization.eager_batching"


_IN_LABEL_NAME: Final = re.compile("[a-zA-Z0-9_]*")
"""The characters of a label's name, which follow the `_` that each tag gets."""


def _check_metrics(report: Report) -> None:
    """Tags can be names of labels: Prometheus would refuse the whole page for one that cannot. A control names the histogram
    whose buckets it sets."""
    for key in report.config.metric_tags:
        if _IN_LABEL_NAME.fullmatch(key) is None:
            text = f"metric tag '{key}' of {report.config.name} cannot be part of the name of a label"
            report.error(entry("metric_tags", key), text, expected="letters, digits and underscores")
    metrics = report.config.model_metrics
    if metrics is None:
        return
    for index, control in enumerate(metrics.metric_control):
        path = f"model_metrics.metric_control[{index}]"
        if control.metric_identifier is None:
            report.error(path, "metric control must specify 'metric_identifier'")
        elif not control.metric_identifier.family:
            report.error(f"{path}.metric_identifier.family", "metric identifier must specify non-empty 'family'")
        elif (family := control.metric_identifier.family) not in DEFAULT_BUCKETS:
            text = f"Metric family '{family}' in 'metric_identifier' is not a customizable metric in Triton core."
            report.warning(f"{path}.metric_identifier.family", text)
        if control.histogram_options is None:
            report.error(path, "metric control must specify 'histogram_options'")
        else:
            _check_buckets(report, f"{path}.histogram_options.buckets", control.histogram_options.buckets)


def _check_buckets(report: Report, path: str, buckets: tuple[float, ...]) -> None:
    if not buckets:
        report.error(path, "histogram options must specify non-empty 'buckets'")
    elif len(buckets) > HISTOGRAM_BUCKETS_MAX:
        report.error(path, f"a histogram has {len(buckets)} buckets", expected=f"at most {HISTOGRAM_BUCKETS_MAX}")
    elif not all(map(math.isfinite, buckets)) or any(low >= high for low, high in itertools.pairwise(buckets)):
        report.error(path, "the buckets of a histogram are not in order", expected="finite numbers, each above the last")


def _check_warmup(report: Report, *, complete: bool) -> None:
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


def validate(config: ModelConfig, *, source: Source = NO_SOURCE, complete: bool = True) -> list[Problem]:
    """Everything that is wrong with a resolved and normalised configuration, errors and warnings.

    `complete` false is for a configuration that its backend may still complete: then a tensor may lack its type and dims, and
    names of tensors that are not there are not looked for. `source` places the problems in the file.
    """
    report = Report(config, source)
    _check_identity(report)
    check_dynamic_batching(report)
    _check_scheduling(report)
    _check_response_cache(report)
    _check_missing_outputs(report)
    _check_not_ready_after(report)
    _check_rollout(report)
    _check_aliases(report)
    _check_load(report)
    _check_tuned_batching(report)
    _check_request_timeout(report)
    _check_metrics(report)
    check_tensors(report, complete=complete)
    check_batch_io(report, complete=complete)
    report.problems.extend(check_instance_groups(config, source))
    _check_warmup(report, complete=complete)
    _check_effects(report)
    return report.problems


def _check_scheduling(report: Report) -> None:
    """Sequences and ensembles, whose rules are imported for models that have one."""
    config = report.config
    if config.sequence_batching is not None:
        from tpy.config.validation.sequences import check_sequence_batching

        check_sequence_batching(report)
    if config.ensemble_scheduling is not None or config.platform == ENSEMBLE_PLATFORM:
        from tpy.config.validation.ensembles import check_ensemble

        check_ensemble(report)


def _check_identity(report: Report) -> None:
    """Name, platform, backend, largest batch, version policy."""
    config = report.config
    if not config.name:
        report.error("name", "model configuration must specify 'name'")
    if not config.backend and config.platform != ENSEMBLE_PLATFORM:
        text = f"unexpected platform type '{config.platform}' for {config.name}"
        report.error("platform", text, expected="a platform or backend that is known")
    if config.backend and config.platform == ENSEMBLE_PLATFORM:
        text = f"Ensemble model '{config.name}' must have platform type '{config.platform}' and empty backend type"
        report.error("backend", text)
    platforms = PLATFORMS_OF_BACKEND.get(config.backend)
    if platforms is not None and config.platform not in platforms:
        text = f"unexpected 'platform' and 'backend' pair, got:{config.platform}, {config.backend}"
        report.error("platform", text, expected=f"platform {' or '.join(sorted(platforms))}")
    if config.max_batch_size < 0:
        report.error("max_batch_size", f"'max_batch_size' must be non-negative value for {config.name}")
    if config.version_policy is None:
        report.error("version_policy", f"must specify 'version policy' for {config.name}")


def _check_response_cache(report: Report) -> None:
    config = report.config
    if config.response_cache is None or not config.response_cache.enable:
        return
    text = f"Response Cache does not currently support model {config.name} with %s. Please disable the response cache."
    if config.sequence_batching is not None:
        report.error("response_cache.enable", text % "sequence batching scheduler")
    if config.decoupled:
        report.error("response_cache.enable", text % "'decoupled' transaction policy")


def _check_missing_outputs(report: Report) -> None:
    value = report.config.parameter(describe.PARAMETER, describe.ERROR)
    if value not in describe.VALUES:
        text = f"unexpected value '{value}' of parameter {describe.PARAMETER} for {report.config.name}"
        report.error(f"parameters[{describe.PARAMETER}]", text, expected=" or ".join(describe.VALUES))


def _check_request_timeout(report: Report) -> None:
    value = report.config.parameter(PARAMETER, RequestTimeout.QUEUE.value)
    known = [each.value for each in RequestTimeout]
    if value not in known:
        text = f"unexpected value '{value}' of parameter {PARAMETER} for {report.config.name}"
        report.error(f"parameters[{PARAMETER}]", text, expected=" or ".join(known))


def _check_rollout(report: Report) -> None:
    try:
        rollout.rollout_plan(report.config)
    except ValueError as error:
        text = f"parameter '{rollout.PARAMETER}' of {report.config.name} is not a valid rollout plan: {error}"
        report.error(f"parameters[{rollout.PARAMETER}]", text, expected=f"a JSON object like {rollout.EXAMPLE}")


def _check_aliases(report: Report) -> None:
    if aliases.aliases(report.config) is None:
        text = f"unexpected value of parameter {aliases.PARAMETER} for {report.config.name}: no version has an alias by it"
        report.warning(f"parameters[{aliases.PARAMETER}]", f"{text}, which expects {aliases.EXPECTED}")


def _check_load(report: Report) -> None:
    for each in on_demand.unexpected_parameters(report.config):
        text = f"unexpected value '{each.value}' of parameter {each.name} for {report.config.name}"
        report.warning(
            f"parameters[{each.name}]", f"{text}: it says nothing to --model-memory-budget, which expects {each.expected}"
        )


def _check_tuned_batching(report: Report) -> None:
    if not report.config.parameters.keys().isdisjoint(_TUNING):
        from tpy.config.tuned_batching import problems  # few models have one of these

        for name, text in problems(report.config):
            report.warning(f"parameters[{name}]", f"parameter {name} of {report.config.name} {text}")


def _check_not_ready_after(report: Report) -> None:
    try:
        not_ready_after.not_ready_after_s(report.config)
    except ValueError:
        value = report.config.parameter(not_ready_after.PARAMETER, "")
        text = f"unexpected value '{value}' of parameter {not_ready_after.PARAMETER} for {report.config.name}"
        report.error(f"parameters[{not_ready_after.PARAMETER}]", text, expected="a number of seconds above 0")
