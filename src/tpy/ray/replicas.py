"""The replicas of an application as one: changes go to all of them, and answers come from all of them.

Changes are numbered by an actor of the deployment, which Serve keeps beside the replicas, and every replica keeps a copy of them.
A replica that starts takes what was changed before; a replica that has missed something takes it with its next health check. If
the actor is lost, Serve starts another one, which learns everything from the first replica that asks.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import ray
from ray import serve
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from tpy.errors import TpyError, Unavailable
from tpy.limits.ray import RAY_CHANGES_ATTEMPTS_MAX, RAY_CHANGES_PAUSE_S, RAY_MEMBER_TIMEOUT_S
from tpy.messages import IndexEntry, ModelState, ModelStatistics
from tpy.ray.core.changes import Action, Change, Changes, Load, Models, Unload
from tpy.ray.core.merged import merged_index, merged_statistics
from tpy.units import NS_PER_S

_log = logging.getLogger(__name__)

T = TypeVar("T")

CHANGES_ACTOR = "changes"
"""The name of the actor beside the replicas."""


class ChangesActor:
    """Numbers the changes of a deployment. An actor that was started anew begins another epoch: then `newer` returns None,
    and whoever asks has to teach it what was changed before."""

    def __init__(self, epoch: int | None = None, since_ns: int | None = None) -> None:
        self._changes = Changes(time.time_ns() if epoch is None else epoch)
        self._since_ns = _deployed_ns() if since_ns is None else since_ns

    def newer(self, epoch: int, newest: int) -> list[Change] | None:
        """The changes that a replica with those up to `newest` lacks."""
        return self._changes.after(newest) if epoch == self._changes.epoch else None

    def teach(self, epoch: int, known: Sequence[Change]) -> tuple[int, list[Change]]:
        """Learn what a replica knows from another epoch; returns the present one, and all changes."""
        self._changes.learn(epoch, known)
        return self._changes.epoch, self._changes.after(0)

    def add(self, action: Action) -> None:
        """Number a change."""
        self._changes.append(action, time.time_ns())

    def all(self) -> list[Change]:
        """All changes."""
        return self._changes.after(0)

    def adopt(self, known: Sequence[Change]) -> None:
        """Take over what clients have asked of another version since this one was deployed."""
        self._changes.adopt(known, self._since_ns)

    def settle(self, action: Action) -> None:
        """Add this action unless it is the newest of its subject: all replicas say what their configuration says."""
        known = self._changes.newest_of(action.subject)
        if known is None or known.action != action:
            self._changes.append(action)


def _deployed_ns() -> int:
    """The time at which the application of this actor was deployed: its version runs beside the one before from then on."""
    application = serve.status().applications.get(serve.get_deployment_actor_context().app_name)
    return time.time_ns() if application is None else int(application.last_deployed_time_s * NS_PER_S)


class ChangeOutcome(NamedTuple):
    """The result of a change on a replica."""

    replica: str
    error: TpyError | None


class Replicas:
    """All replicas of this one's application, and those of `members`: applications that serve one model each, by the model's
    name. `apply` performs a change on this replica, `local` answers for it. On Ray's loop."""

    def __init__(self, name: str, members: Sequence[str], apply: Callable[[Action], Awaitable[None]]) -> None:
        self.name = name
        self.failed: dict[str, TpyError] = {}
        """The subjects of changes that have failed here, with the reason."""
        self.members = tuple(members)
        self._apply = apply
        self._changes = Changes()
        self._lock = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[TpyError | None]] = {}
        self._is_configured = False

    # This replica

    async def settle(self, action: Action) -> None:
        """Perform what the deployment's configuration asks for, which every replica is told. A failure is in `failed`."""
        await self.sync()
        await self._ask_actor("settle", action)
        await self.applied(action.subject)

    async def sync(self) -> None:
        """Take the changes that this replica lacks, and begin to apply them."""
        async with self._lock:
            if self._is_configured:
                await self._adopt()
            changes = self._changes
            newer = await self._ask_actor("newer", changes.epoch, changes.newest)
            if newer is None:
                taught = await self._ask_actor("teach", changes.epoch, changes.after(0))
                newer = changes.replace(*taught)
            else:
                changes.follow(newer)
            for change in newer:
                self._begin(change)

    async def configured(self) -> None:
        """The configuration has been settled, and comes before what is taken over from other versions."""
        self._is_configured = True
        await self.sync()

    async def _adopt(self) -> None:
        """Have the actor take over what clients have asked of replicas of another version, while both run."""
        names = await asyncio.to_thread(_names_of_actors)
        for name in names if len(names) > 1 else ():
            try:
                known = await ray.get_actor(name["name"], namespace=name["namespace"]).all.remote()
            except (RayActorError, ValueError):
                continue  # it went with its version
            await self._ask_actor("adopt", known)

    async def applied(self, subject: str) -> ChangeOutcome:
        """The outcome of the newest change of a subject, when it is over."""
        await self.sync()
        task = self._tasks.get(subject)
        return ChangeOutcome(self.name, None if task is None else await asyncio.shield(task))

    async def wait_applied(self) -> None:
        """Wait until all changes that were taken are over."""
        await asyncio.gather(*self._tasks.values())

    def _begin(self, change: Change) -> None:
        subject = change.action.subject
        is_barrier = isinstance(change.action, Models)
        before = [task for other, task in self._tasks.items() if is_barrier or other in (subject, _BARRIER)]
        self._tasks[subject] = asyncio.create_task(self._perform(change.action, before))

    async def _perform(self, action: Action, before: Sequence[asyncio.Task[TpyError | None]]) -> TpyError | None:
        for task in before:
            await task
        error: TpyError | None = None
        try:
            await self._apply(action)
        except TpyError as refused:
            error = refused.with_traceback(None)
            _log.warning("a change failed on this replica: %(error)s", {"error": error})
        if error is None:
            self.failed.pop(action.subject, None)
        else:
            self.failed[action.subject] = error
        return error

    async def _ask_actor(self, method: str, *arguments: object) -> Any:
        """Raises Unavailable when Serve does not start the actor again in time."""
        for _ in range(RAY_CHANGES_ATTEMPTS_MAX):
            try:
                return await getattr(serve.get_deployment_actor(CHANGES_ACTOR), method).remote(*arguments)
            except (RayActorError, ValueError):  # it is being started anew
                await asyncio.sleep(RAY_CHANGES_PAUSE_S)
        raise Unavailable("the actor that keeps the changes of this application does not answer")

    # All replicas

    async def change(self, action: Action) -> None:
        """Have all replicas perform an action, and return when they have. Raises what it failed with."""
        if isinstance(action, Load | Unload):
            if (model := _model_of(action)) in self.members:
                await self._of_member(model, "change", action)
                return
        else:
            await asyncio.gather(*[self._of_member(model, "change", action) for model in self.members])
        await self._ask_actor("add", action)
        outcomes = await self._ask_all("applied", action.subject, own=await self.applied(action.subject))
        failed = {each.replica: each.error for each in outcomes if each.error is not None}
        if failed:
            raise _one_error(failed, len(outcomes))

    async def index(self, own: Sequence[IndexEntry]) -> list[IndexEntry]:
        """The index of all replicas, and of the applications of models."""
        merged = merged_index(dict(await self._ask_all("local_index", own=(self.name, own))))
        members = await asyncio.gather(*[self._member_index(model) for model in self.members])
        return [*(entry for entry in merged if entry.name not in self.members), *(entry for each in members for entry in each)]

    async def _member_index(self, model: str) -> list[IndexEntry]:
        """The index of a model's application, which has rows for the other models of the repository, too."""
        try:
            entries = await self._of_member(model, "whole_index")
        except TpyError as error:
            return [IndexEntry(name=model, state=ModelState.UNAVAILABLE, reason=error.message)]
        return [entry for entry in entries if entry.name == model]

    async def statistics(self, model: str, version: int | None, own: object) -> list[ModelStatistics]:
        """The statistics of all replicas that know the model, and of the applications of models."""
        if model in self.members:
            return list(await self._of_member(model, "whole_statistics", model, version))
        found = dict(await self._ask_all("local_statistics", model, version, own=(self.name, own)))
        known = [each for each in found.values() if not isinstance(each, TpyError)]
        if not known:
            raise next(each for each in found.values() if isinstance(each, TpyError))
        members = () if model else self.members
        others = await asyncio.gather(*[self._of_member(each, "whole_statistics", each, None) for each in members])
        return [*merged_statistics(known), *(each for entries in others for each in entries)]

    async def _of_member(self, model: str, method: str, *arguments: object) -> Any:
        """Ask the application of a model. Raises what it raises, and Unavailable when it does not answer."""
        try:
            asked = getattr(serve.get_app_handle(model), method).remote(*arguments)
            return await asyncio.wait_for(_answer_of(asked), None if method == "change" else RAY_MEMBER_TIMEOUT_S)
        except RayTaskError as error:
            raise error.cause if isinstance(error.cause, TpyError) else Unavailable(str(error.cause)) from None
        except (RayServeException, RayError, TimeoutError) as error:
            raise Unavailable(f"the application of model '{model}' does not answer: {error or 'time-out'}") from None

    async def _ask_all(self, method: str, *arguments: object, own: tuple[str, Any]) -> list[Any]:
        """The answers of all replicas that run; `own` is this one's, which may not be among them yet. Replicas that die meanwhile
        do not count: others take their places, with all changes."""
        context = serve.get_replica_context()
        handle = serve.get_deployment_handle(context.deployment, app_name=context.app_name)
        answers = {own[0]: own}
        for answer in await handle.broadcast(method, *arguments).results_async(return_exceptions=True):
            if isinstance(answer, RayActorError):
                continue
            if isinstance(answer, BaseException):
                raise answer
            answers[answer[0]] = answer
        return list(answers.values())


def _names_of_actors() -> list[dict[str, str]]:
    """The actors of all versions of this deployment, of which one has no name but this among actors."""
    context = serve.get_replica_context()
    part = f"{context.app_name}::{context.deployment}::"
    named = ray.util.list_named_actors(all_namespaces=True)
    return [each for each in named if part in each["name"] and each["name"].endswith(f"::{CHANGES_ACTOR}")]


async def _answer_of(asked: Awaitable[T]) -> T:
    return await asked


_BARRIER = Models(()).subject


def _model_of(action: Load | Unload) -> str:
    return action.request.model_name if isinstance(action, Load) else action.model_name


def _one_error(failed: Mapping[str, TpyError], count: int) -> TpyError:
    """The error of a change that some of `count` replicas refused."""
    first = next(iter(failed.values()))
    if len(failed) == count:
        return first
    told = "; ".join(f"{replica}: {error.message}" for replica, error in sorted(failed.items()))
    return type(first)(f"failed on {len(failed)} of {count} replicas: {told}")


RemoteChangesActor = ray.remote(ChangesActor)
