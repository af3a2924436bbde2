"""Changes: what clients have asked of an application since it was deployed, in order."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tpy.messages import LoadRequest, LogSettings, RegionKind, Registration
from tpy.services import TraceUpdates


class Load(msgspec.Struct, frozen=True):
    """Load or reload a model."""

    request: LoadRequest

    @property
    def subject(self) -> str:
        return f"model {self.request.model_name}"


class Unload(msgspec.Struct, frozen=True):
    """Unload a model."""

    model_name: str
    dependents: bool = False

    @property
    def subject(self) -> str:
        return f"model {self.model_name}"


class Models(msgspec.Struct, frozen=True):
    """These models are to be loaded, and no others: the deployment's `user_config`."""

    names: tuple[str, ...]

    @property
    def subject(self) -> str:
        return "models"


class Log(msgspec.Struct, frozen=True):
    """Log settings."""

    settings: LogSettings

    @property
    def subject(self) -> str:
        return "log"


class Trace(msgspec.Struct, frozen=True):
    """Trace settings of a model, "" for the server."""

    model_name: str
    updates: TraceUpdates

    @property
    def subject(self) -> str:
        return f"trace {self.model_name} {' '.join(sorted(self.updates))}"


class Register(msgspec.Struct, frozen=True):
    """Register a region of shared memory."""

    registration: Registration

    @property
    def subject(self) -> str:
        return f"region {self.registration.name}"


class Unregister(msgspec.Struct, frozen=True):
    """Forget a region, or all of a kind ("")."""

    kind: RegionKind
    name: str

    @property
    def subject(self) -> str:
        return f"region {self.name}" if self.name else f"regions {self.kind.value}"


Action = Load | Unload | Models | Log | Trace | Register | Unregister


class Change(msgspec.Struct, frozen=True):
    """An action, its number, and when it was asked for. A later change to the same subject takes its place."""

    number: int
    action: Action
    made_ns: int = 0


class Changes:
    """The newest change of each subject. `epoch` is that of who numbers them, later ones being larger; `newest` is the number of
    the last one, 0 for none."""

    def __init__(self, epoch: int = 0) -> None:
        self.epoch = epoch
        self.newest = 0
        self._by_subject: dict[str, Change] = {}
        self._origins: dict[str, tuple[int, int]] = {}
        """The epoch and the number that the newest change of a subject was first given."""

    def after(self, number: int) -> list[Change]:
        """The changes that are newer than this one, in order."""
        return sorted((each for each in self._by_subject.values() if each.number > number), key=lambda each: each.number)

    def newest_of(self, subject: str) -> Change | None:
        """The newest change of a subject."""
        return self._by_subject.get(subject)

    # Who numbers them

    def append(self, action: Action, made_ns: int = 0) -> None:
        """The next change."""
        self._put(Change(self.newest + 1, action, made_ns))
        self._origins[action.subject] = self.epoch, self.newest

    def adopt(self, known: Sequence[Change], since_ns: int) -> None:
        """Take over what clients have asked of another version of the application after `since_ns`, as far as nothing later to
        the same subject is known. What its configuration says is its own."""
        for change in known:
            own = self.newest_of(change.action.subject)
            is_new = change.made_ns > since_ns and (own is None or own.made_ns < change.made_ns)
            if is_new and not isinstance(change.action, Models):
                self.append(change.action, change.made_ns)

    def learn(self, epoch: int, known: Sequence[Change]) -> None:
        """Take over changes of an earlier epoch, as far as no later one to the same subject is known."""
        for change in known:
            origin = epoch, change.number
            if self._origins.get(change.action.subject, (-1, 0)) < origin:
                self._put(Change(self.newest + 1, change.action, change.made_ns))
                self._origins[change.action.subject] = origin

    # Who has a copy

    def follow(self, changes: Sequence[Change]) -> list[Change]:
        """Take newer changes of the same epoch, in order; returns them."""
        for change in changes:
            self._put(change)
        return list(changes)

    def replace(self, epoch: int, changes: Sequence[Change]) -> list[Change]:
        """Take over all changes of another epoch; returns the ones that differ from what was known."""
        known, self._by_subject = self._by_subject, {}
        self.epoch, self.newest = epoch, 0
        self.follow(changes)
        return [each for each in changes if each.action.subject not in known or known[each.action.subject].action != each.action]

    def _put(self, change: Change) -> None:
        self._by_subject[change.action.subject] = change
        self.newest = max(self.newest, change.number)
