"""All rules, in the order in which Triton applies them; and those for the configuration as a whole."""

from __future__ import annotations

from tpy.config import missing_outputs, not_ready_after
from tpy.config.instance_groups import check_instance_groups
from tpy.config.known_backends import PLATFORMS_OF_BACKEND
from tpy.config.model_config import ModelConfig
from tpy.config.problem import NO_SOURCE, Problem, Source
from tpy.config.request_timeout import PARAMETER, RequestTimeout
from tpy.config.resolve import ENSEMBLE_PLATFORM
from tpy.config.validation.batching import check_dynamic_batching
from tpy.config.validation.effects import check_effects
from tpy.config.validation.ensembles import check_ensemble
from tpy.config.validation.metrics import check_metrics
from tpy.config.validation.report import Report
from tpy.config.validation.sequences import check_sequence_batching
from tpy.config.validation.tensors import check_batch_io, check_tensors
from tpy.config.validation.warmup import check_warmup


def validate(config: ModelConfig, *, source: Source = NO_SOURCE, complete: bool = True) -> list[Problem]:
    """Everything that is wrong with a resolved and normalised configuration, errors and warnings.

    `complete` false is for a configuration that its backend may still complete: then a tensor may lack its type and dims, and
    names of tensors that are not there are not looked for. `source` places the problems in the file.
    """
    report = Report(config, source)
    _check_identity(report)
    check_dynamic_batching(report)
    check_sequence_batching(report)
    check_ensemble(report)
    _check_response_cache(report)
    _check_missing_outputs(report)
    _check_not_ready_after(report)
    _check_request_timeout(report)
    check_metrics(report)
    check_tensors(report, complete=complete)
    check_batch_io(report, complete=complete)
    report.problems.extend(check_instance_groups(config, source))
    check_warmup(report, complete=complete)
    check_effects(report)
    return report.problems


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
    value = report.config.parameter(missing_outputs.PARAMETER, missing_outputs.ERROR)
    if value not in missing_outputs.VALUES:
        text = f"unexpected value '{value}' of parameter {missing_outputs.PARAMETER} for {report.config.name}"
        report.error(f"parameters[{missing_outputs.PARAMETER}]", text, expected=" or ".join(missing_outputs.VALUES))


def _check_request_timeout(report: Report) -> None:
    value = report.config.parameter(PARAMETER, RequestTimeout.QUEUE.value)
    known = [each.value for each in RequestTimeout]
    if value not in known:
        text = f"unexpected value '{value}' of parameter {PARAMETER} for {report.config.name}"
        report.error(f"parameters[{PARAMETER}]", text, expected=" or ".join(known))


def _check_not_ready_after(report: Report) -> None:
    try:
        not_ready_after.not_ready_after_s(report.config)
    except ValueError:
        value = report.config.parameter(not_ready_after.PARAMETER, "")
        text = f"unexpected value '{value}' of parameter {not_ready_after.PARAMETER} for {report.config.name}"
        report.error(f"parameters[{not_ready_after.PARAMETER}]", text, expected="a number of seconds above 0")
