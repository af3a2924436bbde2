"""MemoryBudget: the driver of the budget's core. It has models loaded and unloaded, refuses requests that have waited for too
long, and keeps the sizes of models for the next start of the server."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import msgspec
import trio

from tpy.clock import Clock
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.config.on_demand import LoadPolicy, LoadWhen, load_policy
from tpy.errors import QueueFull, TooManyRequests, TpyError, Unavailable
from tpy.files import format_of, read_file, replace_file
from tpy.limits import MODEL_SIZES_FILE_BYTES_MAX, ON_DEMAND_LOOK_S, RETRY_AFTER_S_MAX
from tpy.messages import MemoryUsage
from tpy.state import ObservedKey
from tpy.telemetry.exposition import MeasuredFamily
from tpy.units import KIB, MIB, NS_PER_S
from tpy_data.engine.budget.core.budget import (
    HOST,
    Action,
    Amounts,
    BudgetCore,
    Load,
    Refuse,
    Shortage,
    State,
    Unload,
    Why,
    shortage,
)
from tpy_data.engine.budget.core.sizes import FORMAT, Footprint, KeptSize, KeptSizes, Measurement, ModelFiles, Sizes
from tpy_data.engine.budget.gpus import GpuBudget
from tpy_data.engine.budget.metrics import BudgetUse, GpuBudgetUse, budget_families
from tpy_data.engine.budget.on_demand_engine import OnDemandEngine
from tpy_data.engine.budget.waiting_room import WaitingRoom
from tpy_data.schedulers.core.tenants import Tenants

_log = logging.getLogger(__name__)
_DECODER = msgspec.json.Decoder(KeptSizes)

CANNOT_FIT, LATE, FULL = "cannot_fit", "late", "full"
"""Reasons of refusals."""

_LONG_NS = 3600 * NS_PER_S


class ModelOnDemand(Protocol):
    """A version whose loads the budget decides."""

    @property
    def key(self) -> ObservedKey: ...

    @property
    def engine(self) -> OnDemandEngine: ...

    def begin_load(self) -> None:
        """Load it."""
        ...

    def begin_unload(self) -> None:
        """Have new requests wait, answer the others, and unload it."""
        ...

    def is_busy(self) -> bool:
        """True while the loaded copy has requests, or live sequences."""
        ...


class Member:
    """A model of the budget, as its engine asks about it (a `Demand`). Its instances are to be on `gpus`."""

    def __init__(
        self, budget: MemoryBudget, model: ModelOnDemand, backend: str, files: ModelFiles, gpus: Collection[int]
    ) -> None:
        self._budget = budget
        self._core = budget.core
        self._clock = budget.clock
        self.model = model
        self.key = model.key
        self.name = f"{model.key.model}:{model.key.version}"
        self.backend = backend
        self.files = files
        self.gpus = gpus

    def used(self) -> None:
        """See Demand."""
        self._core.use(self.key, self._clock.now_ns())

    def wanted(self, deadline_ns: int) -> None:
        """See Demand."""
        budget = self._budget
        is_known = self.key in budget.pending
        if not is_known:
            self._core.ask(self.key)
            budget.pending[self.key] = self
        if not is_known or deadline_ns < budget.due_ns:  # to decide takes a millisecond for a thousand models
            budget.wake()

    def forgotten(self) -> None:
        """See Demand."""
        self._core.forget(self.key)
        self._budget.pending.pop(self.key, None)

    def cannot_fit(self) -> TpyError | None:
        """See Demand."""
        expected = self._budget.expected(self)
        self._core.expect(self.key, expected)
        lacking = shortage(expected, self._core.budget, self._core.pinned)
        return None if lacking is None else self._budget.refusal(self.name, lacking)

    def refused(self, error: TpyError) -> None:
        """See Demand."""
        self._budget.refusals[FULL if isinstance(error, QueueFull | TooManyRequests) else CANNOT_FIT] += 1
        error.wait_s = error.wait_s or self.later_s()

    def later_s(self) -> int:
        """Seconds in which it will be loaded, about."""
        return min(max(1, math.ceil(self._core.wait_ns(self.key) / NS_PER_S)), RETRY_AFTER_S_MAX)


class MemoryBudget:
    """That of the host, and of each of `gpus`. `file` keeps sizes, None: they are forgotten with the process; `kept` is what it
    had. `all_on_demand`: models whose parameters say nothing else are loaded on demand. `tenants` share the places of requests
    that wait. On the Trio thread; `run` is a task of
    the data plane's nursery."""

    def __init__(
        self,
        budget_bytes: int,
        clock: Clock,
        *,
        loads_max: int,
        wait_ns_max: int,
        gpus: Sequence[GpuBudget] = (),
        all_on_demand: bool = False,
        file: Path | None = None,
        kept: Mapping[str, KeptSize] = MappingProxyType({}),
        tenants: Tenants | None = None,
    ) -> None:
        # A busy model makes room early enough that whoever waits for it is not refused just then.
        budget = (budget_bytes, *(gpu.bytes for gpu in gpus))
        self.core: BudgetCore[ObservedKey] = BudgetCore(budget, loads_max=loads_max, turn_ns_max=wait_ns_max // 4)
        self._gpus = gpus
        self.clock = clock
        self.wait_ns_max = wait_ns_max
        self.room = WaitingRoom(tenants=tenants)
        self._default = LoadWhen.ON_DEMAND if all_on_demand else LoadWhen.AT_START
        self._file = file
        self._sizes = Sizes(kept, {gpu.id: gpu.bytes for gpu in gpus})
        self._members: dict[ObservedKey, Member] = {}
        self._loads = 0
        self._unloads: Counter[Why] = Counter()
        self.refusals: Counter[str] = Counter()
        self.pending: dict[ObservedKey, Member] = {}
        """Members that requests wait for."""
        self.due_ns = 0
        """The time when it decides next, if nothing happens before."""
        self._measured = trio.Event()
        self._woken = trio.Event()

    async def run(self) -> None:
        """Do what the core decides, and keep sizes, until cancelled."""
        async with trio.open_nursery() as nursery:
            if self._file is not None:
                nursery.start_soon(self._keep_sizes, self._file)
            await self._decide()

    async def _decide(self) -> None:
        while True:
            now_ns = max(self.clock.now_ns(), 0 if self._woken.is_set() else self.due_ns)
            self._woken = trio.Event()
            self._refuse_late(now_ns)
            busy = {key for key in self.core.loaded_keys() if self._members[key].model.is_busy()}
            for action in self.core.advance(now_ns, busy):
                self._perform(action)
            self.due_ns = self._next_ns(now_ns)
            with trio.move_on_after((self.due_ns - now_ns) / NS_PER_S):
                await self._woken.wait()

    def wake(self) -> None:
        """There may be something to decide."""
        self._woken.set()

    def policy(self, config: ModelConfig) -> LoadPolicy:
        """The load policy of a model."""
        return load_policy(config, self._default)

    @contextmanager
    def joined(self, model: ModelOnDemand, policy: LoadPolicy, config: ModelConfig, files: ModelFiles) -> Iterator[Member]:
        """The model is one of the budget for the length of the block. Its configuration says where its instances are."""
        member = self._members[model.key] = Member(self, model, config.backend, files, _gpus_of(config))
        self.core.add(
            model.key,
            self.expected(member),
            resident_ns_min=round(policy.resident_s_min * NS_PER_S),
            keep_alive_ns=round(policy.keep_alive_s * NS_PER_S),
            warm=policy.when is LoadWhen.WARM,
        )
        self.wake()
        try:
            yield member
        finally:
            del self._members[model.key]
            self.pending.pop(model.key, None)
            self.core.remove(model.key)
            self.wake()

    def expected(self, member: Member) -> Amounts:
        """The size that a model is thought to have."""
        return self._amounts(self._sizes.expected(member.name, member.backend, member.files, member.gpus))

    def loaded(self, member: Member, usage: Sequence[MemoryUsage]) -> None:
        """It is loaded, and has taken so much memory."""
        self.core.loaded(member.key, self._measure_member(member, usage), self.clock.now_ns())
        lacking = self.core.shortage(member.key)
        if lacking is not None:
            _log.error("%(reason)s", {"reason": self.refusal(member.name, lacking).message})
        self.wake()

    def resized(self, member: Member, usage: Sequence[MemoryUsage]) -> None:
        """It is loaded, and has other instances now."""
        self.core.resized(member.key, self._measure_member(member, usage))
        self.wake()

    def unloaded(self, member: Member) -> None:
        """Its memory is free."""
        self.core.unloaded(member.key)
        self.core.expect(member.key, self.expected(member))
        if member.model.engine.pending():
            self.core.ask(member.key)
        self.wake()

    def check_pinned(self, name: str, config: ModelConfig, files: ModelFiles) -> None:
        """Raises Unavailable for a model that is to stay, and has more than all of the budget."""
        expected = self._amounts(self._sizes.expected(name, config.backend, files, _gpus_of(config)))
        lacking = shortage(expected, self.core.budget, (0,) * len(self.core.budget))
        if lacking is not None:
            raise self.refusal(name, lacking)

    def pin(self, key: ObservedKey, config: ModelConfig, files: ModelFiles, usage: Sequence[MemoryUsage]) -> None:
        """A model that stays is loaded. Its configuration says where its instances are."""
        self.core.pin(key, self._measure(f"{key.model}:{key.version}", config.backend, files, usage, _gpus_of(config)))
        self.wake()
        for place, (pinned_bytes, budget_bytes) in enumerate(zip(self.core.pinned, self.core.budget, strict=True)):
            if pinned_bytes > budget_bytes:
                about = {"models": _shown(pinned_bytes), "budget": self._budget_text(place)}
                _log.error("models that stay loaded have %(models)s, %(budget)s", about)

    def unpin(self, key: ObservedKey) -> None:
        """It is not any more."""
        self.core.unpin(key)
        self.wake()

    def _measure_member(self, member: Member, usage: Sequence[MemoryUsage]) -> Amounts:
        return self._measure(member.name, member.backend, member.files, usage, member.gpus)

    def _measure(
        self, name: str, backend: str, files: ModelFiles, usage: Sequence[MemoryUsage], gpus: Collection[int]
    ) -> Amounts:
        """The size that counts for a model that takes so much, and is remembered."""
        self._measured.set()
        return self._amounts(self._sizes.measured(name, backend, files, _measurement(usage, gpus)))

    def _amounts(self, found: Footprint) -> Amounts:
        """As the core has it: other GPUs have no budget."""
        return found.host_bytes, *(found.gpus.get(gpu.id, 0) for gpu in self._gpus)

    def _budget_text(self, place: int) -> str:
        """The budget of a place, for errors."""
        shown = _shown(self.core.budget[place])
        if place == HOST:
            return f"--model-memory-budget is {shown}"
        return f"--model-gpu-memory-budget of GPU {self._gpus[place - 1].id} is {shown}"

    def refusal(self, name: str, lacking: Shortage) -> TpyError:
        """The error of a model that cannot fit."""
        pinned = f", of which models that stay loaded have {_shown(lacking.pinned_bytes)}" if lacking.pinned_bytes else ""
        error = Unavailable(f"model '{name}' needs {_shown(lacking.needed_bytes)}, {self._budget_text(lacking.place)}{pinned}")
        error.wait_s = RETRY_AFTER_S_MAX
        return error

    def families(self) -> list[MeasuredFamily]:
        """Its metrics now."""
        core = self.core
        models = {state.value: count for state, count in core.counts().items()}
        unloads = {why.name.lower(): self._unloads[why] for why in Why}
        refusals = {reason: self.refusals[reason] for reason in (CANNOT_FIT, LATE, FULL)}
        used = core.used
        gpus = [GpuBudgetUse(gpu.id, gpu.uuid, gpu.bytes, on_gpu) for gpu, on_gpu in zip(self._gpus, used[1:], strict=True)]
        waiting = self.room.requests
        return budget_families(BudgetUse(core.budget[HOST], used[HOST], waiting, models, self._loads, unloads, refusals, gpus))

    def _next_ns(self, now_ns: int) -> int:
        """The time when something is due: refusals, decisions, a look at models that are busy."""
        times = [self.core.next_deadline_ns()]
        times += [member.model.engine.next_deadline_ns() for member in self.pending.values()]
        if self.core.is_short:
            times.append(now_ns + round(ON_DEMAND_LOOK_S * NS_PER_S))
        return min([each for each in times if each is not None], default=now_ns + _LONG_NS)

    def _refuse_late(self, now_ns: int) -> None:
        for member in list(self.pending.values()):
            self.refusals[LATE] += member.model.engine.expire(now_ns, partial(self._late, member))

    def _late(self, member: Member) -> TpyError:
        """The error of requests that have waited for as long as they may."""
        core, waiting = self.core, self.core.waiting()
        ahead = waiting.index(member.key) if member.key in waiting else 0
        loading = core.counts()[State.LOADING]
        size, used = core.size(member.key), core.used
        on_gpus = "".join(
            f", on GPU {gpu.id} {_shown(mine)}, and {_shown(taken)} of --model-gpu-memory-budget {_shown(gpu.bytes)} are in use"
            for gpu, mine, taken in self._on_gpus(member.key)
        )
        error = Unavailable(
            f"model '{member.name}' was not loaded within {self.wait_ns_max / NS_PER_S:g} s: it is "
            f"{core.state(member.key).value} (models ahead of it: {ahead}, being loaded: {loading}), it needs "
            f"{_shown(size[HOST])}, and {_shown(used[HOST])} of --model-memory-budget "
            f"{_shown(core.budget[HOST])} are in use{on_gpus}"
        )
        error.wait_s = member.later_s()
        return error

    def _perform(self, action: Action) -> None:
        match action:
            case Load(key=ObservedKey() as key):
                self._loads += 1
                _log.info("loading '%(model)s' on demand: %(size)s, %(used)s of %(budget)s in use%(gpus)s", self._about(key))
                self._members[key].model.begin_load()
            case Unload(key=ObservedKey() as key, why=why):
                self._unloads[why] += 1
                about = {**self._about(key), "why": why.value}
                _log.info("unloading '%(model)s', %(why)s: %(size)s, %(used)s of %(budget)s in use%(gpus)s", about)
                self._members[key].model.begin_unload()
            case Refuse(key=ObservedKey() as key):
                member = self._members[key]
                refusal = member.cannot_fit()
                if refusal is not None:
                    self.refusals[CANNOT_FIT] += member.model.engine.refuse_pending(refusal)
                else:  # models like it have turned out smaller by now
                    self.core.ask(key)
                    self.wake()

    def _about(self, key: ObservedKey) -> dict[str, object]:
        size, used, budget = self.core.size(key), self.core.used, self.core.budget
        on_gpus = "".join(
            f"; GPU {gpu.id}: {_shown(mine)}, {_shown(taken)} of {_shown(gpu.bytes)} in use"
            for gpu, mine, taken in self._on_gpus(key)
        )
        sizes = {"size": size[HOST], "used": used[HOST], "budget": budget[HOST]}
        return {
            "model": self._members[key].name,
            **{name: _shown(amount) for name, amount in sizes.items()},
            "gpus": on_gpus,
        }

    def _on_gpus(self, key: ObservedKey) -> Iterator[tuple[GpuBudget, int, int]]:
        """The GPUs that a model has, or is to have, memory on: its bytes there, and all that are in use."""
        of_model, used = self.core.size(key), self.core.used
        for place, gpu in enumerate(self._gpus, start=1):
            if of_model[place]:
                yield gpu, of_model[place], used[place]

    async def _keep_sizes(self, file: Path) -> None:
        """A task for itself: a slow disk holds up no load."""
        while True:
            await self._measured.wait()
            self._measured = trio.Event()
            await self._keep(file)

    async def _keep(self, file: Path) -> None:
        content = msgspec.json.format(msgspec.json.encode(self._sizes.kept()), indent=2)
        try:
            await trio.to_thread.run_sync(replace_file, file, content)
        except OSError as error:
            _log.error("--model-sizes-file %(file)s cannot be written: %(reason)s", {"file": str(file), "reason": str(error)})


def read_sizes(file: Path) -> Mapping[str, KeptSize]:
    """The content of the file; nothing if it does not exist or has another format. Blocks. Raises Unavailable for a file that
    cannot be read."""
    try:
        content = read_file(file, bytes_max=MODEL_SIZES_FILE_BYTES_MAX)
        found = format_of(content)
        if found == FORMAT:
            return _DECODER.decode(content).models
    except FileNotFoundError:
        return {}
    except (OSError, TpyError, RecursionError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        raise Unavailable(f"--model-sizes-file {file} cannot be read: {error}") from None
    about = {"file": str(file), "found": found, "format": FORMAT}
    _log.warning("--model-sizes-file %(file)s has format %(found)s, expected %(format)s: sizes are measured anew", about)
    return {}


def _gpus_of(config: ModelConfig) -> frozenset[int]:
    """The GPUs of the instances of a placed configuration."""
    groups = [group for group in config.instance_group if group.kind is InstanceKind.KIND_GPU]
    return frozenset(gpu for group in groups for gpu in group.gpus)


def _measurement(usage: Sequence[MemoryUsage], gpus: Collection[int]) -> Measurement:
    """The usage, which has each place once, of a model whose instances are on `gpus`."""
    on_gpus = [each for each in usage if each.kind == "GPU"]
    known = {each.id: each.byte_size for each in on_gpus if not each.is_growth}
    grown = {gpu: 0 for gpu in gpus if gpu not in known} | {each.id: each.byte_size for each in on_gpus if each.is_growth}
    return Measurement(sum(each.byte_size for each in usage if each.kind == "CPU"), known, grown)


def _shown(size_bytes: int) -> str:
    return f"{size_bytes / MIB:.1f} MiB" if size_bytes >= MIB else f"{size_bytes / KIB:.1f} KiB"
