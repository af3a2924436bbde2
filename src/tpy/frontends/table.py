"""The table of frontends: the ways in which a server can be asked, each found by its entry point in the group `tpy.frontends`.

An entry has a name, flags, and what becomes of them: options, a port, a coroutine that serves it. Nothing else in the server
knows which frontends there are: command line, start-up messages, drain and frontend processes go through the table.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import TYPE_CHECKING, Any, Protocol, cast

import trio

from tpy.errors import Unavailable
from tpy.flag import Flag, Value
from tpy.plugins import OLD_INSTALLATION, how_to_mend, installed, package_of

if TYPE_CHECKING:
    from tpy.clock import Clock
    from tpy.frontends.transport import BoundAddress, ListenOptions
    from tpy.services import Services

GROUP = "tpy.frontends"


class Serve(Protocol):
    """Serves a port."""

    async def __call__(
        self,
        options: Any,
        services: Services,
        clock: Clock,
        /,
        *,
        stop: trio.Event,
        inherited: Sequence[socket.socket] = (),
        task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until `stop` is set and what was in flight has been answered (at most `options.drain_timeout_s`).

        Listens on `inherited` when there are any, whose address belongs to whoever made them, else on that of the options.
        Reports the bound address as soon as connections are accepted. Raises Unavailable when the address cannot be bound and
        InvalidArgument for options that cannot be served. Cancelled: stops at once, requests in flight are cancelled.
        """
        ...


class Implementation(Protocol):
    """The module of a frontend."""

    Options: type[ListenOptions]
    """Crosses to frontend processes as MessagePack."""

    def read_options(self, values: Mapping[str, Value], /) -> ListenOptions | None:
        """The options that the values of all flags say; None: not served. Raises InvalidArgument for values that cannot be, with
        the name of the flag."""
        ...

    @property
    def serve(self) -> Serve:
        """A coroutine for options of the type above."""
        ...


class Starting(Protocol):
    """The module that answers at the port of a frontend while the server starts."""

    async def serve_health(
        self,
        options: Any,
        clock: Clock,
        /,
        *,
        stop: trio.Event,
        inherited: Sequence[socket.socket] = (),
        task_status: trio.TaskStatus[BoundAddress] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Say whether the server lives and is ready, until `stop` is set; as `Implementation.serve` otherwise."""
        ...


@dataclass(frozen=True, kw_only=True)
class Frontend:
    """An entry of the table, which every command of tpy reads. `name` of the port in messages (`HTTP`); `service`: Triton's name
    of it, in the line with the address; `module` has the implementation and is imported when it is served; `flags` of
    `tpy serve`, and the `switch` among them, which is false where the port is not served; "": its options say that.
    `engine_only`: served by the server's own process, with --frontend-processes too. `until_drained`, too: served until the other
    ports have drained. `checks_access`: --auth-config holds there; where it does not, both are refused together.
    `late` are modules that it imports when they are first needed, and that processes which are forked share.
    `starting_module` has a `serve_health` that answers at the port until the models of the start have loaded; "": the port is
    closed until then.
    `platform` reads the environment that a platform makes for its containers: values of flags, of any, by name; they count where
    neither the command line nor a variable of tpy's says otherwise."""

    name: str
    service: str
    module: str
    flags: Sequence[Flag]
    switch: str = ""
    engine_only: bool = False
    until_drained: bool = False
    starting_module: str = ""
    late: Sequence[str] = ()
    platform: Callable[[Mapping[str, str]], Mapping[str, str]] = lambda environment: {}
    checks_access: bool = False

    def load(self) -> Implementation:
        """Import the implementation. Raises Unavailable when that fails."""
        try:
            return cast("Implementation", import_module(self.module))
        except Exception as error:  # of a package that may not be ours
            raise Unavailable(
                f"the frontend '{self.name}' cannot be loaded from {self.module}: {type(error).__name__}: {error}"
            ) from error

    def load_all(self) -> None:
        """Import the implementation, and what that would import later, for all processes that are forked from this one. Raises
        Unavailable when the implementation cannot be imported, ImportError for the rest."""
        self.load()
        for name in self.late:
            import_module(name)

    def load_starting(self) -> Starting | None:
        """Import what answers until the models of the start have loaded; None: nothing does."""
        return cast("Starting", import_module(self.starting_module)) if self.starting_module else None


@cache
def frontends() -> Mapping[str, Frontend]:
    """All frontends that are installed, by the name of the entry point, in the order of these names. Raises RuntimeError when
    no frontend is installed: then the installation is older than the source that runs; Unavailable for one that cannot be loaded,
    and for two that want the same name or flag."""
    found = installed(GROUP)
    if not found:
        raise RuntimeError(f"no entry points '{GROUP}': {OLD_INSTALLATION}")
    table = dict[str, Frontend]()
    owners = dict[str, EntryPoint]()
    for entry in found:
        table[entry.name] = frontend = _loaded(entry)
        for claim in (f"the name '{entry.name}'", *(f"the flag --{flag.name}" for flag in frontend.flags)):
            if (other := owners.setdefault(claim, entry)).value != entry.value:  # the same one may be installed twice
                raise Unavailable(
                    f"the frontends of {_package(other)} ({other.value}) and {_package(entry)} ({entry.value}) both want "
                    f"{claim}; remove one of the packages"
                )
    return table


def platform_values(environment: Mapping[str, str]) -> dict[str, str]:
    """The values of flags, by name, that the environment of a platform asks for."""
    found: dict[str, str] = {}
    for frontend in frontends().values():
        found.update(frontend.platform(environment))
    return found


def _loaded(entry: EntryPoint) -> Frontend:
    try:
        loaded = entry.load()
        if not isinstance(loaded, Frontend):
            raise TypeError(f"expected a Frontend, got {type(loaded).__name__}")
    except Exception as error:  # of a package that is not ours
        raise Unavailable(
            f"the frontend '{entry.name}' of {_package(entry)} ({entry.value}) cannot be loaded: {type(error).__name__}: "
            f"{error}; {how_to_mend(entry, error)}"
        ) from error
    return loaded


def _package(entry: EntryPoint) -> str:
    return package_of(entry) or "an unknown package"
