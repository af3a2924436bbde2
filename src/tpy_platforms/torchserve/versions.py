"""TorchServe's names of versions, as 1.0, which `tpy import` notes in a parameter of the configuration: `1=1.0 2=1.1`."""

from __future__ import annotations

from tpy.config import ModelConfig
from tpy.echo import echo
from tpy.errors import NotFound
from tpy.services import InferenceService, ResolvedModel
from tpy_platforms.torchserve.answers import ModelVersionNotFound, UnknownModel

_PARAMETER = "TORCHSERVE_VERSIONS"


def names_of(config: ModelConfig) -> dict[int, str]:
    """The names of versions by number. Others have their numbers for names."""
    pairs = (each.partition("=") for each in config.parameter(_PARAMETER).split())
    return {int(number): name for number, _, name in pairs if number.isascii() and number.isdigit() and len(number) < 19}


def resolve(service: InferenceService, model: str, release: str | None) -> ResolvedModel:
    """The model, in the version of this name; None: the newest that is ready. Raises UnknownModel, ModelVersionNotFound, and
    as `resolve`."""
    return service.resolve(model, None if release is None else number_of(service, model, release))


def number_of(service: InferenceService, model: str, release: str) -> int:
    """The number of the version of this name. Raises UnknownModel and ModelVersionNotFound."""
    ready = ready_versions(service, model)
    names = names_of(service.config(model))
    for number in ready:
        if names.get(number, str(number)) == release:
            return number
    raise ModelVersionNotFound(f"Model version: {echo(release)} does not exist for model: {echo(model)}")


def ready_versions(service: InferenceService, model: str) -> tuple[int, ...]:
    """The numbers of the versions that are ready. Raises UnknownModel if no version is ready."""
    try:
        ready = service.ready_versions(model)
    except NotFound:
        ready = ()
    if not ready:
        raise UnknownModel(f"Model not found: {echo(model)}")
    return ready
