"""Makes candidates from scans: parses the configuration and runs the repository agents."""

from __future__ import annotations

import functools
import logging

import msgspec

from tpy.errors import InvalidArgument
from tpy.ids import ModelId
from tpy_control.core.agents import mismatches, required_md5s
from tpy_control.core.candidate import Candidate, Override, RefusalKind, Refused, interpret
from tpy_control.core.scan import DirectoryFingerprint, ModelLocation, ModelScan
from tpy_control.offload import Offload
from tpy_control.sources.protocol import RepositorySource

_log = logging.getLogger(__name__)


class Prepared(msgspec.Struct, frozen=True):
    """The outcome of a scan, with the directory's fingerprint."""

    fingerprint: DirectoryFingerprint
    outcome: Candidate | Refused


class Preparation:
    """Makes candidates. Stateless; calls may run at the same time."""

    def __init__(self, *, auto_complete: bool, offload: Offload) -> None:
        self._auto_complete = auto_complete
        self._offload = offload

    async def prepare(
        self, source: RepositorySource, scan: ModelScan, model: ModelId, *, override: Override | None = None
    ) -> Prepared:
        """Make a candidate of a scan. `source` is its source, for the files that agents check."""
        work = functools.partial(_interpret, scan, model, self._auto_complete, override)
        outcome = await self._offload(work)
        if isinstance(outcome, Candidate):
            faults = await _agent_faults(source, scan.location, outcome)
            if faults:
                outcome = Refused(id=model, kind=RefusalKind.POLL, message="; ".join(faults))
        return Prepared(scan.fingerprint, outcome)


def _interpret(scan: ModelScan, model: ModelId, auto_complete: bool, override: Override | None) -> Candidate | Refused:
    try:
        return interpret(scan, model, auto_complete=auto_complete, override=override)
    except Exception as error:  # a bug in reading one configuration must not keep the other models from being served
        _log.exception("a configuration could not be read because of a bug", extra={"context": {"model": str(model)}})
        message = f"internal error while reading the configuration: {type(error).__name__}: {error}"
        return Refused(id=model, kind=RefusalKind.POLL, message=message)


async def _agent_faults(source: RepositorySource, location: ModelLocation, candidate: Candidate) -> list[str]:
    try:
        required = required_md5s(candidate.config)
    except InvalidArgument as error:
        return [error.message]
    found = {path: await source.md5(location, path) for path in required}
    return mismatches(required, found)
