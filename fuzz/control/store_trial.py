"""StoreTrial: the state store beside two dictionaries and the table of moves, drawn anew from its documentation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy.config import ModelConfig
from tpy.errors import InvariantViolation
from tpy.ids import Generation, ModelId, Version
from tpy.messages import ModelState
from tpy.state import DesiredModel, ModelStateStore, ObservedKey, ObservedVersion
from tpy.state.store import IllegalMove

INVARIANT = (
    "the store moves a version exactly as its table says and refuses, unchanged, every other move; a state keeps its time until"
    " it changes; the revision grows with every change and with nothing else; a snapshot never changes; each half has one writer"
)
MOVES = {
    "absent": "loading",
    "loading": "ready unavailable",
    "ready": "ready unloading unavailable",
    "unavailable": "ready loading unloading unavailable absent",
    "unloading": "unavailable",
}
_WORDS = {
    ModelState.LOADING: "loading",
    ModelState.READY: "ready",
    ModelState.UNAVAILABLE: "unavailable",
    ModelState.UNLOADING: "unloading",
}
_KEYS = [
    ObservedKey(ModelId(name), Version(version), Generation(generation))
    for name in "ab"
    for version in (1, 2)
    for generation in (1, 2)
]
_CONFIGS = [ModelConfig(name="m"), ModelConfig(name="m", max_batch_size=4)]


class _Hands:
    """A clock whose time the history says."""

    def __init__(self) -> None:
        self.at_ns = 0

    def now_ns(self) -> int:
        return self.at_ns

    def until_ns(self, deadline_ns: int) -> float:
        return (deadline_ns - self.at_ns) / 1e9


class StoreTrial:
    """One history."""

    def __init__(self, store_of: type[ModelStateStore], taken: Counter[str]) -> None:
        self.taken = taken
        self.hands = _Hands()
        self.store = store_of(self.hands)  # type: ignore[arg-type]  # only its time is asked for
        self.desired = self.store.desired_writer()
        self.observed = self.store.observed_writer()
        self.states: dict[ObservedKey, tuple[str, int, str]] = {}
        """State, since when, why."""
        self.models: dict[ModelId, DesiredModel] = {}
        self.rejections: dict[ModelId, tuple[str, int]] = {}
        self.answering: dict[ModelId, Version] = {}
        self.generations: dict[ModelId, int] = {}
        self.seen = [(self.store.snapshot(), 0, "")]
        self.steps: list[str] = []

    def move(self, key: ObservedKey, state: ModelState, reason: str) -> None:
        before, since_ns, _ = self.states.get(key, ("absent", 0, ""))
        after = _WORDS[state]
        legal = after in MOVES[before].split()
        if legal:
            self.states[key] = (after, since_ns if before == after else self.hands.at_ns, reason)
        self._step(f"move {key} {after}", legal, lambda: self.observed.move(ObservedVersion(key=key, state=state, reason=reason)))
        self.taken[f"{before} -> {after}" if legal else "illegal move"] += 1

    def forget(self, key: ObservedKey) -> None:
        before = self.states.get(key, ("absent", 0, ""))[0]
        legal = before in ("absent", "unavailable")
        if legal:
            self.states.pop(key, None)
        self._step(f"forget {key}", legal, lambda: self.observed.forget(key), changes=before == "unavailable")
        self.taken["forget" if legal else "illegal forget"] += 1

    def answer(self, model: ModelId, version: Version | None) -> None:
        changes = self.answering.get(model) != version
        self.answering.pop(model, None)
        if version is not None:
            self.answering[model] = version
        self._step(f"answer {model} {version}", True, lambda: self.observed.answer(model, version), changes=changes)
        self.taken["answer"] += 1

    def put(self, model: ModelId, config: ModelConfig) -> None:
        desired = DesiredModel(id=model, directory=Path("d"), config=config, config_revision=1, versions={})
        changes = self.models.get(model) != desired or model in self.rejections
        self.models[model] = desired
        self.rejections.pop(model, None)
        self._step(f"put {model}", True, lambda: self.desired.put(desired), changes=changes)
        self.taken["put"] += 1

    def reject(self, model: ModelId, reason: str) -> None:
        known = self.rejections.get(model)
        changes = known is None or known[0] != reason
        if changes:
            self.rejections[model] = (reason, self.hands.at_ns)
        self._step(f"reject {model} {reason}", True, lambda: self.desired.reject(model, reason), changes=changes)
        self.taken["reject"] += 1

    def withdraw(self, model: ModelId) -> None:
        changes = self.rejections.pop(model, None) is not None
        self._step(f"withdraw {model}", True, lambda: self.desired.withdraw_rejection(model), changes=changes)
        self.taken["withdraw"] += 1

    def remove(self, model: ModelId) -> None:
        changes = (self.models.pop(model, None) is not None) | (self.rejections.pop(model, None) is not None)
        self._step(f"remove {model}", True, lambda: self.desired.remove(model), changes=changes)
        self.taken["remove"] += 1

    def next_generation(self, model: ModelId) -> None:
        self.generations[model] = self.generations.get(model, 0) + 1
        given = self.desired.next_generation(model)
        if given != self.generations[model]:
            raise self._violation(f"generation {given} of {model}, expected {self.generations[model]}")
        self.taken["next generation"] += 1

    def second_writer(self) -> None:
        for give in (self.store.desired_writer, self.store.observed_writer):
            try:
                give()
            except InvariantViolation:
                continue
            raise self._violation("a second writer was given")
        self.taken["second writer"] += 1

    def finish(self) -> None:
        """Snapshots that were taken have not changed since."""
        for snapshot, revision, shown in self.seen:
            if snapshot.revision != revision or (shown and self._shown(snapshot) != shown):
                raise self._violation(f"snapshot {revision} has changed")

    def _step(self, text: str, legal: bool, call: object, *, changes: bool = True) -> None:
        self.steps.append(f"{self.hands.at_ns} {text}")
        before = self.store.snapshot()
        try:
            assert callable(call)
            call()
        except IllegalMove:
            if legal:
                raise self._violation("a legal move was refused") from None
        else:
            if not legal:
                raise self._violation("an illegal move was made")
        after = self.store.snapshot()
        changed = legal and changes
        if after.revision != before.revision + changed or (after is before) is changed:
            raise self._violation(f"revision {before.revision} became {after.revision}, changed: {changed}")
        expected = self.states
        found = {key: (_WORDS[each.state], each.since_ns, each.reason) for key, each in after.observed.items()}
        if found != expected:
            raise self._violation(f"observed {found}, expected {expected}")
        rejections = {model: (each.reason, each.since_ns) for model, each in after.rejections.items()}
        if dict(after.desired) != self.models or rejections != self.rejections:
            raise self._violation(f"desired {after.desired} {rejections}, expected {self.models} {self.rejections}")
        if dict(after.answering) != self.answering:
            raise self._violation(f"answering {after.answering}, expected {self.answering}")
        if changed and len(self.seen) < 8:
            self.seen.append((after, after.revision, self._shown(after)))

    @staticmethod
    def _shown(snapshot: msgspec.Struct) -> str:
        return repr(snapshot)

    def _violation(self, text: str) -> Violation:
        return Violation(text + "\n" + "\n".join(self.steps))


def run_store(chance: Chance, store_of: type[ModelStateStore] = ModelStateStore) -> int:
    """A random history; returns its number of steps."""
    trial = StoreTrial(store_of, chance.taken)
    states = list(_WORDS)
    models = [ModelId("a"), ModelId("b")]
    for _ in chance.rounds((50, 60, 70)):
        trial.hands.at_ns += chance.choice((0, 1, 5))
        rule = chance.random()
        if rule < 0.6:
            key = chance.choice(_KEYS)
            before = trial.states.get(key, ("absent", 0, ""))[0]
            legal = [state for state in states if _WORDS[state] in MOVES[before].split()]
            trial.move(key, chance.choice(legal if chance.random() < 0.85 else states), chance.choice(("", "why")))
        elif rule < 0.65:
            trial.forget(chance.choice(_KEYS))
        elif rule < 0.7:
            trial.answer(chance.choice(models), chance.choice((None, Version(1), Version(2))))
        elif rule < 0.8:
            trial.put(chance.choice(models), chance.choice(_CONFIGS))
        elif rule < 0.88:
            trial.reject(chance.choice(models), chance.choice("xy"))
        elif rule < 0.92:
            trial.withdraw(chance.choice(models))
        elif rule < 0.96:
            trial.remove(chance.choice(models))
        elif rule < 0.99:
            trial.next_generation(chance.choice(models))
        else:
            trial.second_writer()
    trial.finish()
    return len(trial.steps)
