"""The control core against its rule, in any order of events: Hypothesis chooses the history and shrinks what fails.

The rule and all checks are in fuzz/control/trial.py.
"""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, rule

from fuzz.control.trial import ControlTrial, Settings

NAMES = st.sampled_from(["a", "b"])
VERSIONS = st.integers(min_value=0, max_value=3)
CONTENTS = st.sampled_from(["x", "y"])

SETTINGS = st.builds(
    Settings,
    policy=st.sampled_from(["all", 1, 2, (1,), (0, 3)]),
    instances=st.integers(1, 2),
    batch=st.sampled_from([0, 8]),
    broken=st.sampled_from([False] * 7 + [True]),
)

CHANGES = st.one_of(
    st.tuples(st.just("version"), VERSIONS, CONTENTS),
    st.tuples(st.just("version"), VERSIONS, CONTENTS),
    st.tuples(st.just("no version"), VERSIONS),
    st.tuples(st.just("config"), SETTINGS),
    st.tuples(st.just("shared"), CONTENTS),
    st.tuples(st.just("gone")),
)


class ControlMachine(RuleBasedStateMachine):
    """Any events in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.trial = ControlTrial()

    @rule(name=NAMES, change=CHANGES, then=st.sampled_from(["look", "look", "load", "load", "nothing"]))
    def change(self, name: str, change: tuple[object, ...], then: str) -> None:
        self.trial.change(name, change, then)

    @rule(name=NAMES, version=VERSIONS)
    def answer(self, name: str, version: int) -> None:
        self.trial.answer(name, version)

    @rule(
        name=NAMES,
        what=st.sampled_from(["look", "load", "load", "unload", "fail", "fail", "fail and load", "restart", "newest answers"]),
    )
    def act(self, name: str, what: str) -> None:
        self.trial.act(name, what)


TestControlCore = ControlMachine.TestCase
TestControlCore.settings = settings(max_examples=30, stateful_step_count=40)
