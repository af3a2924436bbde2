"""The changes of an application, whoever keeps them."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tpy.messages import LoadRequest
from tpy.ray.core.changes import Action, Change, Changes, Load, Models, Unload
from tpy.ray.replicas import ChangesActor

MODELS = st.sampled_from("abc")
ACTIONS = st.one_of(
    MODELS.map(lambda name: Load(LoadRequest(model_name=name))),
    MODELS.map(Unload),
    st.lists(MODELS, unique=True).map(lambda names: Models(tuple(names))),
)


def load(name: str) -> Action:
    return Load(LoadRequest(model_name=name))


def actions(changes: Sequence[Change]) -> list[Action]:
    return [change.action for change in changes]


def sync(actor: ChangesActor, replica: Changes) -> None:
    newer = actor.newer(replica.epoch, replica.newest)
    if newer is None:
        replica.replace(*actor.teach(replica.epoch, replica.after(0)))
    else:
        replica.follow(newer)


def test_a_change_takes_the_place_of_the_one_before() -> None:
    changes = Changes()
    for action in (load("a"), load("b"), Unload("a")):
        changes.append(action)
    assert changes.after(0) == [Change(2, load("b")), Change(3, Unload("a"))]
    assert changes.after(2) == [Change(3, Unload("a"))]


def test_a_configuration_that_all_replicas_tell_is_one_change() -> None:
    actor, replica = ChangesActor(1, 0), Changes()
    for _ in range(3):
        actor.settle(Models(("a",)))
    actor.add(Unload("a"))
    actor.settle(Models(("a",)))  # a replica that starts later
    sync(actor, replica)
    assert actions(replica.after(0)) == [Models(("a",)), Unload("a")]
    actor.settle(Models(("a", "b")))
    assert actions(actor.newer(1, replica.newest) or ()) == [Models(("a", "b"))]


def test_an_actor_that_was_started_anew_learns_what_was_changed_before() -> None:
    first, replica = ChangesActor(1, 0), Changes()
    for action in (load("a"), load("b"), Unload("a")):
        first.add(action)
    sync(first, replica)
    second = ChangesActor(2, 0)
    second.add(load("b"))
    second.add(load("c"))
    assert second.newer(replica.epoch, replica.newest) is None
    lacking = replica.replace(*second.teach(replica.epoch, replica.after(0)))
    assert actions(lacking) == [load("c")]
    assert {change.action.subject for change in replica.after(0)} == {"model a", "model b", "model c"}


def test_two_versions_have_what_clients_ask_of_either_while_both_run() -> None:
    old, new = Changes(1), Changes(2)
    old.append(load("before"), made_ns=10)
    new.append(Models(("a",)), made_ns=25)
    old.append(load("a"), made_ns=30)
    new.append(Unload("a"), made_ns=40)
    old.append(load("b"), made_ns=50)
    for _ in range(2):  # nothing comes back
        new.adopt(old.after(0), since_ns=20)
        old.adopt(new.after(0), since_ns=0)
    assert actions(new.after(0)) == [Models(("a",)), Unload("a"), load("b")]
    assert actions(old.after(0)) == [load("before"), load("b"), Unload("a")]


@given(st.lists(st.tuples(st.integers(0, 2), st.one_of(ACTIONS, st.sampled_from(["sync", "lose the actor"]))), max_size=30))
def test_all_replicas_end_with_the_same_changes(steps: list[tuple[int, Action | str]]) -> None:
    """Invariant: when all have synchronised twice, each has the same change of each subject: the last one that was made, unless
    the actor was lost before anybody had it."""
    epoch = 1
    actor = ChangesActor(epoch, 0)
    replicas = [Changes() for _ in range(3)]
    last: dict[str, Action] = {}
    for number, step in steps:
        if step == "sync":
            sync(actor, replicas[number])
        elif step == "lose the actor":
            epoch += 1
            actor = ChangesActor(epoch, 0)
        elif not isinstance(step, str):
            actor.add(step)
            sync(actor, replicas[number])  # as a change does before it is acknowledged
            last[step.subject] = step
    for replica in replicas * 2:
        sync(actor, replica)
    for replica in replicas:
        assert {change.action.subject: change.action for change in replica.after(0)} == last
