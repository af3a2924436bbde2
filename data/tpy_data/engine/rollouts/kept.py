"""The file of rollouts: what was decided, for the next start of the server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

import msgspec

from tpy.config.rollout import RolloutPlan
from tpy.echo import echo
from tpy.errors import TpyError, Unavailable
from tpy.files import UnusableFile, read_file
from tpy.ids import ModelId, Version
from tpy.limits import ROLLOUT_FILE_BYTES_MAX
from tpy_data.engine.rollouts.core.rollout import RolloutState

_log = logging.getLogger(__name__)

FORMAT: Final = 1
FORMAT_WITH_PLAN: Final = 2
"""Of a model's line in the file, and of one with the plan of a call: an earlier tpy reads the former only. A line of a higher
number is refused: without what it says, a version that was rolled back would get all requests."""

_FORMAT_MAX: Final = max(FORMAT, FORMAT_WITH_PLAN)


_Number = Annotated[int, msgspec.Meta(ge=0)]


class _Decided(msgspec.Struct, frozen=True):
    """A line without a plan."""

    version: _Number
    new: _Number = 0
    step: _Number = 0
    state: RolloutState = RolloutState.RUNNING
    reason: str = ""
    format: int = FORMAT


class Kept(_Decided, frozen=True):
    """A model's line in the file: the version that answers, the newer one with its step and state, 0 for none, and the plan that
    a call has given."""

    plan: RolloutPlan | msgspec.UnsetType = msgspec.UNSET

    @property
    def given_plan(self) -> RolloutPlan | None:
        """The plan that a call has given and that still holds, or None."""
        return None if self.plan is msgspec.UNSET or self.state is RolloutState.PROMOTED else self.plan


class KeptRollouts(NamedTuple):
    """The file of --rollout-file, and its lines by model."""

    file: Path
    lines: Mapping[str, Kept]

    def answering(self, *, namespacing: bool) -> dict[ModelId, Version]:
        """The versions that answered when the file was written. With `namespacing` its models have the names of repositories."""
        found: dict[ModelId, Version] = {}
        for model, line in self.lines.items():
            namespace, _, name = model.rpartition("::") if namespacing else ("", "", model)
            found[ModelId(name, namespace)] = Version(line.new if line.state is RolloutState.PROMOTED else line.version)
        return found


class _Format(msgspec.Struct, frozen=True):
    """The part of a line that any format has; the first ones did not say it."""

    format: int = FORMAT


_FORMATS = msgspec.json.Decoder(dict[str, _Format])
_LINES = msgspec.json.Decoder(dict[str, msgspec.Raw])
_LINE = msgspec.json.Decoder(Kept)
_DECIDED = msgspec.json.Decoder(_Decided)


def read_kept(file: Path) -> KeptRollouts:
    """The content of the file, no lines if it does not exist. Blocks. Raises Unavailable if it cannot be read."""
    try:
        content = read_file(file, bytes_max=ROLLOUT_FILE_BYTES_MAX)
        for model, line in _FORMATS.decode(content).items():
            if line.format > _FORMAT_MAX:
                raise UnusableFile(
                    f"model '{model}' has format {line.format}, expected at most {_FORMAT_MAX}: a newer tpy has written it; "
                    "start that one, or remove the file to begin with the newest version of each model"
                )
        lines = {
            model: msgspec.structs.replace(line, format=FORMAT if line.given_plan is None else FORMAT_WITH_PLAN)
            for model, line in ((model, _read_line(model, text)) for model, text in _LINES.decode(content).items())
        }
        return KeptRollouts(file, lines)
    except FileNotFoundError:
        return KeptRollouts(file, {})
    except (OSError, TpyError, RecursionError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise Unavailable(f"--rollout-file {file} cannot be read: {error}") from None


def _read_line(model: str, text: msgspec.Raw) -> Kept:
    """A line of the file. A plan that this tpy does not take must not keep the server from starting, nor give all requests to a
    version that was rolled back: the defaults stand in for it. Raises MsgspecError if anything else is wrong."""
    try:
        return _LINE.decode(text)
    except (RecursionError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        decided = _DECIDED.decode(text)
        about = {"model": model, "reason": echo(str(error))}
        _log.error(
            "model '%(model)s': the plan in --rollout-file does not hold any more, the default one does: %(reason)s", about
        )
        return Kept(**msgspec.structs.asdict(decided), plan=RolloutPlan())
