"""EnsembleGraph: which steps an ensemble has and which tensors go between them. Immutable; tensors and steps are numbers here."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from tpy.limits import ENSEMBLE_PLANS_MAX


class GraphStep(NamedTuple):
    """A step: the tensors it reads (each once, however many inputs it feeds) and those it writes. A decoupled step answers any
    number of times."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    decoupled: bool = False


class EnsemblePlan(NamedTuple):
    """The part of a graph that one request needs. `readers` are, by tensor, the needed steps that wait for it; `uses`, by tensor,
    how often it is taken before nobody needs it any more; `outputs` are the requested ones."""

    graph: EnsembleGraph
    outputs: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    uses: tuple[int, ...]


class EnsembleGraph:
    """`inputs` and `outputs` are the ensemble's own tensors. Every output must be one that a step writes, or an input; every
    tensor is written at most once; there is no cycle. (`tpy.config` sees to that.) `decoupled`: an ensemble with a decoupled
    step may answer any number of times."""

    __slots__ = ("_plans", "_whole", "_writer", "decoupled", "inputs", "outputs", "steps", "tensor_count")

    def __init__(self, steps: Sequence[GraphStep], *, inputs: Sequence[int], outputs: Sequence[int], tensor_count: int) -> None:
        self.steps = tuple(steps)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.tensor_count = tensor_count
        self.decoupled = any(step.decoupled for step in self.steps)
        self._writer = {tensor: number for number, step in enumerate(self.steps) for tensor in step.outputs}
        self._plans: dict[frozenset[int], EnsemblePlan] = {}
        self._whole = self._make_plan(self.outputs)

    def plan(self, requested: Collection[int] = ()) -> EnsemblePlan:
        """The plan for these outputs; for all outputs if empty."""
        if not requested:
            return self._whole
        key = frozenset(requested)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._make_plan([tensor for tensor in self.outputs if tensor in key])
            if len(self._plans) < ENSEMBLE_PLANS_MAX:
                self._plans[key] = plan
        return plan

    def _make_plan(self, outputs: Sequence[int]) -> EnsemblePlan:
        needed = self._steps_behind(outputs)
        readers: list[list[int]] = [[] for _ in range(self.tensor_count)]
        for number in sorted(needed):
            for tensor in self.steps[number].inputs:
                readers[tensor].append(number)
        uses = [len(those) for those in readers]
        for tensor in outputs:
            uses[tensor] += 1
        return EnsemblePlan(self, tuple(outputs), tuple(map(tuple, readers)), tuple(uses))

    def _steps_behind(self, tensors: Iterable[int]) -> set[int]:
        """The steps without which these tensors cannot be had."""
        needed: set[int] = set()
        waiting = list(tensors)
        while waiting:
            number = self._writer.get(waiting.pop())
            if number is not None and number not in needed:
                needed.add(number)
                waiting.extend(self.steps[number].inputs)
        return needed
