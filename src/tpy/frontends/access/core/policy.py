"""The rules of access: roles, patterns of model names, rates. Time is an argument."""

from __future__ import annotations

import enum
import math
from collections.abc import Collection, Iterable
from fnmatch import fnmatchcase

from tpy.limits import ACCESS_MODELS_REMEMBERED_MAX
from tpy.token_bucket import TokenBucket


class Role(enum.Enum):
    """A set of calls: `infer` asks models and reads their descriptions, `manage` loads, unloads and changes settings, `observe`
    reads the index, statistics, settings and metrics."""

    INFER = "infer"
    MANAGE = "manage"
    OBSERVE = "observe"


ALL_ROLES = frozenset(Role)
WHOLE_SERVER = None
"""In place of a model's name: a call that is about all models. It needs the pattern `*`."""


class RoleGrant:
    """Roles for the models whose names match one of the patterns (`*`, `?`, `[abc]`, as in a shell)."""

    def __init__(self, roles: Iterable[Role], models: Iterable[str] = ("*",)) -> None:
        self.roles = frozenset(roles)
        self.models = tuple(models)
        self._whole = "*" in self.models
        self._known: dict[str, bool] = {}

    def allows(self, roles: Collection[Role], model: str | None) -> bool:
        """Returns True if one of `roles` is granted for `model`."""
        return not self.roles.isdisjoint(roles) and (self._whole or (model is not None and self._matches(model)))

    def _matches(self, model: str) -> bool:
        known = self._known.get(model)
        if known is None:
            known = any(fnmatchcase(model, pattern) for pattern in self.models)
            if len(self._known) >= ACCESS_MODELS_REMEMBERED_MAX:  # names are clients' words
                self._known.clear()
            self._known[model] = known
        return known


class Allowance:
    """The rate and the concurrency of one key. None: no limit."""

    def __init__(self, *, per_s: float | None = None, burst: int | None = None, concurrency: int | None = None) -> None:
        size = burst if burst is not None else max(1, math.ceil(per_s or 1))
        self._bucket = None if per_s is None else TokenBucket(per_s=per_s, burst=size)
        self._concurrency = concurrency
        self.running = 0

    @property
    def is_unlimited(self) -> bool:
        """True if it never refuses anything."""
        return self._bucket is None and self._concurrency is None

    def begin(self, now_ns: int) -> int | None:
        """Count a request as running. Returns None, or why not: nanoseconds after which to try again, 0 where that is when
        another one has ended."""
        if self._concurrency is not None and self.running >= self._concurrency:
            return 0
        if self._bucket is not None and (wait_ns := self._bucket.take(now_ns)):
            return wait_ns
        self.running += 1
        return None

    def end(self) -> None:
        """One has ended."""
        self.running -= 1


INFER = frozenset({Role.INFER})
OBSERVE = frozenset({Role.OBSERVE})
_MANAGE = frozenset({Role.MANAGE})
_LOOK = frozenset({Role.OBSERVE, Role.MANAGE})


def roles_for(category: str, *, changes: bool) -> frozenset[Role]:
    """Returns the roles of which one is needed for a call of this category (see `tpy.frontends.restrictions`); `changes`: it
    changes something."""
    match category:
        case "inference" | "shared-memory":
            return INFER
        case "model-repository" | "trace" | "logging":
            return _MANAGE if changes else _LOOK
        case "statistics" | "metrics":
            return OBSERVE
        case _:
            return ALL_ROLES
