"""Makes candidates from scans: parses the configuration and runs the repository agents."""

from __future__ import annotations

import functools
import logging

import msgspec

from tpy.config import ModelConfig
from tpy.errors import TpyError
from tpy.ids import ModelId
from tpy.messages import ConfigCheck
from tpy_control.agents import AgentsWhenNeeded
from tpy_control.core.candidate import Candidate, Override, RefusalKind, Refused, config_with_agents, interpret
from tpy_control.core.scan import CONFIG_FILENAME, CONFIGS_FOLDER, DirectoryFingerprint, ModelLocation, ModelScan
from tpy_control.offload import Offload
from tpy_control.sources.protocol import RepositorySource

_log = logging.getLogger(__name__)


class Prepared(msgspec.Struct, frozen=True):
    """The outcome of a scan, with the directory's fingerprint."""

    fingerprint: DirectoryFingerprint
    outcome: Candidate | Refused


class Preparation:
    """Makes candidates. Calls may run at the same time."""

    def __init__(self, *, auto_complete: bool, offload: Offload, agents: AgentsWhenNeeded) -> None:
        self._auto_complete = auto_complete
        self._offload = offload
        self._agents = agents

    async def prepare(
        self, source: RepositorySource, scan: ModelScan, model: ModelId, *, override: Override | None = None
    ) -> Prepared:
        """Make a candidate of a scan. `source` is its source, for the files that agents check."""
        config = await self._offload(functools.partial(config_with_agents, scan, override))
        if config is not None:
            return Prepared(scan.fingerprint, await self._prepare_by_agents(source, scan, model, config, override))
        return Prepared(scan.fingerprint, await self._interpret(scan, model, override))

    async def check(self, scan: ModelScan, given: str | None, *, known: frozenset[str]) -> ConfigCheck:
        """Check a configuration, as `check_config`."""
        from tpy_control.core.config_check import check_config  # few servers are asked

        return await self._offload(functools.partial(check_config, scan, given, auto_complete=self._auto_complete, known=known))

    async def _prepare_by_agents(
        self, source: RepositorySource, scan: ModelScan, model: ModelId, config: ModelConfig, override: Override | None
    ) -> Candidate | Refused:
        """Make a candidate of what the agents of a configuration leave."""
        key = (scan.fingerprint, override, config)
        agents = self._agents.get()
        current = agents.current(model, key)
        if current is not None:
            return current
        try:
            lifecycle, found_by, location = await agents.load(source, scan, model, config, key)
        except TpyError as error:
            return Refused(id=model, kind=RefusalKind.POLL, message=error.message)
        outcome: Candidate | Refused | None = None
        try:
            outcome = await self._read_again(found_by, location, scan, model, override)
        finally:
            if not isinstance(outcome, Candidate):
                await agents.fail(lifecycle)
        if isinstance(outcome, Candidate):
            return msgspec.structs.replace(
                outcome, fingerprint=scan.fingerprint, lifecycle=lifecycle.number, origin=scan.directory
            )
        return outcome

    async def _read_again(
        self, source: RepositorySource, location: ModelLocation, scan: ModelScan, model: ModelId, override: Override | None
    ) -> Candidate | Refused:
        if location != scan.location:
            config_name = scan.config_path.removeprefix(f"{CONFIGS_FOLDER}/").removesuffix(".pbtxt")
            found = await source.scan(location, config_name=config_name if scan.config_path != CONFIG_FILENAME else "")
            if found is None:
                text = f"the folder {location.repository}/{location.name}, set by a repository agent, does not exist"
                return Refused(id=model, kind=RefusalKind.POLL, message=text)
            scan = msgspec.structs.replace(found, has_given_name=scan.has_given_name)
        return await self._interpret(scan, model, override)

    async def _interpret(self, scan: ModelScan, model: ModelId, override: Override | None) -> Candidate | Refused:
        return await self._offload(functools.partial(_interpret, scan, model, self._auto_complete, override))


def _interpret(scan: ModelScan, model: ModelId, auto_complete: bool, override: Override | None) -> Candidate | Refused:
    try:
        return interpret(scan, model, auto_complete=auto_complete, override=override)
    except Exception as error:  # a bug in reading one configuration must not keep the other models from being served
        _log.exception("a configuration could not be read because of a bug", extra={"context": {"model": str(model)}})
        message = f"internal error while reading the configuration: {type(error).__name__}: {error}"
        return Refused(id=model, kind=RefusalKind.POLL, message=message)
