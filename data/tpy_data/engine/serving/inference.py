"""EngineInference: the InferenceService over the serving table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tpy.clock import Clock
from tpy.config import ModelConfig
from tpy.config.aliases import aliased
from tpy.config_forms import ConfigForms
from tpy.echo import echo
from tpy.errors import AmbiguousName, InvalidArgument, NotFound, ServerNotReady, TpyError, Unavailable
from tpy.messages import ModelState
from tpy.messages.allowed import with_hint
from tpy.state import UNLOADED, ModelStateStore, ObservedVersion
from tpy_data.engine.sequences.sequence_peers import LiveSequencesOnly
from tpy_data.engine.serving.serving_table import Answering, Served, ServedModel, ServingTable
from tpy_data.schedulers.core import Outcome

_REASON_CHARACTERS_MAX = 400
"""A reason of several lines is shown whole up to this length."""


class EngineInference:
    """Two dictionary lookups lead from a request to its version. Only when they fail is the store asked why."""

    def __init__(self, table: ServingTable, store: ModelStateStore, *, clock: Clock, model_namespacing: bool) -> None:
        self._table = table
        self._store = store
        self._clock = clock
        self._model_namespacing = model_namespacing
        self._stopping = False
        self._live = True

    def stop(self) -> None:
        """Refuse every request from now on, except those of live sequences: the server is stopping."""
        self._stopping = True

    def resolve(self, model_name: str, version: int | None = None) -> Answering:
        """As `InferenceService.resolve`."""
        model = self._table.by_name.get(model_name)
        if model is not None and not self._stopping:
            found = model.resolved.get(version)
            if found is not None:
                return found
        if (found_as := self.of_alias(model_name, version)) is not None:
            return self.resolve(*found_as)
        return self._resolve_for_sequences(model_name, version)

    def of_alias(self, model_name: str, version: int | None) -> tuple[str, int] | None:
        """The model and version that MODEL@ALIAS stands for; None: it is the name of a model. Raises NotFound for an alias that
        the model does not have."""
        if version is not None or model_name in self._table.by_name:
            return None
        return aliased(model_name, self._config_of)

    def _config_of(self, model_name: str) -> ModelConfig | None:
        model = self._table.by_name.get(model_name)
        if model is None:
            return None
        # A rollout that awaits its old version has no newest one, and the loaded versions keep their names.
        served = model.newest or next(reversed(model.versions.values()))
        return served.served_copy.config

    def refuse_everything(self) -> None:
        """Answer everything with "Server not ready" from now on."""
        self._live = False

    def require_live(self) -> None:
        """Raises Unavailable after `refuse_everything`."""
        if not self._live:
            raise ServerNotReady

    def config(self, model_name: str, version: int | None = None) -> ModelConfig:
        """As `InferenceService.config`."""
        return self.config_forms(model_name, version).config

    def config_forms(self, model_name: str, version: int | None = None) -> ConfigForms:
        """As `InferenceService.config_forms`."""
        return self._find(model_name, version).served_copy.forms

    def ready_versions(self, model_name: str) -> tuple[int, ...]:
        """As `InferenceService.ready_versions`."""
        model = self._table.by_name.get(model_name)
        if model is None:
            if (found_as := self.of_alias(model_name, None)) is not None:
                return tuple(each for each in self.ready_versions(found_as[0]) if each == found_as[1])
            self._require_known(model_name)
            return ()
        return tuple(number for number, served in model.versions.items() if served.ready)

    async def check_ready(self, model_name: str, version: int | None = None) -> bool:
        """True when a version that is served says itself that it is ready. Raises as `resolve`."""
        served = self._find(model_name, version)
        if not served.ready:
            raise self._why_not(served.id.name, version)
        return await served.check_ready()

    def _resolve_for_sequences(self, model_name: str, version: int | None) -> LiveSequencesOnly:
        """A model that only requests of live sequences can use: they go on wherever their sequence is."""
        sequences = self._table.sequences
        try:
            description = self._find(model_name, version).served_copy.description
        except TpyError as refusal:
            known = sequences.described(model_name, version)
            if known is None:
                raise
            return LiveSequencesOnly(sequences, known, type(refusal), refusal.message, self._clock, wait_s=refusal.wait_s)
        return LiveSequencesOnly(sequences, description, Unavailable, Outcome.STOPPING.value, self._clock, names_request=True)

    def _find(self, model_name: str, version: int | None) -> Served:
        model = self._table.by_name.get(model_name)
        if model is not None:
            served = model.newest if version is None else model.versions.get(version)
            if served is not None and served.accepts:
                return served
        elif (found_as := self.of_alias(model_name, version)) is not None:
            return self._find(*found_as)
        error = self._why_not(model_name, version)
        if model is not None:  # switched in, while its instances are started again
            served = model.versions.get(_needed(model) if version is None else version)
            error.wait_s = None if served is None else served.retry_s()
        raise error

    def _why_not(self, model_name: str, version: int | None) -> TpyError:
        """The error when there is no such version to serve, in Triton's words."""
        self._require_known(model_name)
        about = f"Request for unknown model: '{echo(model_name)}'"
        observed = [each for key, each in self._store.snapshot().observed.items() if key.model.name == model_name]
        model = self._table.by_name.get(model_name)
        if version is None:
            if model is None:
                return NotFound(with_hint(f"{about} has no available versions", _reason_of(observed)))
            # A version is switched in, but its instances have failed and are being replaced, or it is rolled out and the one
            # before it is still being loaded: worth another try later.
            return Unavailable(f"{about} version {_needed(model)} is not at ready state")
        gone = any(key.version == version for key in self._table.have_served if key.model.name == model_name)
        if gone or any(each.key.version == version and each.state is not ModelState.UNKNOWN for each in observed):
            reason = _reason_of([each for each in observed if each.key.version == version])
            return Unavailable(with_hint(f"{about} version {version} is not at ready state", reason))
        return NotFound(f"{about} version {version} is not found")

    def _require_known(self, model_name: str) -> None:
        """Raises for a model that was never loaded, or whose name several namespaces have."""
        self.require_live()
        snapshot = self._store.snapshot()
        known = {key.model for key in snapshot.observed if key.model.name == model_name}
        known.update(key.model for key in self._table.have_served if key.model.name == model_name)
        if len(known) > 1:
            raise AmbiguousName(model_name, len(known))
        if not known:
            refused = [rejection.reason for model, rejection in snapshot.rejections.items() if model.name == model_name]
            message = with_hint(f"Request for unknown model: '{echo(model_name)}' is not found", _first_line(refused))
            # Triton's code for the same text depends on the flag.
            raise InvalidArgument(message) if self._model_namespacing else NotFound(message)


def _needed(model: ServedModel) -> int:
    """The version that requests without one get when it is ready."""
    return max(model.versions) if model.awaited is None else model.awaited


def _reason_of(observed: Iterable[ObservedVersion]) -> str:
    """Returns the reason of the newest version that is not there; "" where that is as it should be."""
    observed = tuple(observed)
    if any(each.state is ModelState.LOADING for each in observed):
        return "it is loading"
    newest_last = sorted(observed, key=lambda each: each.key)
    return _first_line([each.reason for each in newest_last if each.reason != UNLOADED][-1:])


def _first_line(reasons: Sequence[str]) -> str:
    """Returns the first reason as a hint, on one line. Of a traceback the first line: the log and the index have the rest."""
    if not reasons:
        return ""
    before, at, _ = reasons[0].partition("\n\nAt:\n")
    lines = before.splitlines()
    whole = " ".join(line.strip() for line in lines)
    text = whole if not at and len(whole) <= _REASON_CHARACTERS_MAX else lines[0] if lines else ""
    return f"the reason: {echo(text)}" if text else ""
