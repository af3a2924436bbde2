"""The fuzz runner: histories follow from their seed, failures are found, shrunk, written down, and say how to repeat them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz import corpus_file
from fuzz.chance import Chance, Tape
from fuzz.registry import TARGETS, target_named
from fuzz.runner import check_rules, replay_file, run_target
from fuzz.shrinker import Shrinker, play
from fuzz.target import Target, Violation

HONEST = [target for target in TARGETS if not target.must_fail]
CANARIES = [target for target in TARGETS if target.must_fail]


def run_small_numbers_only(chance: Chance) -> int:
    numbers = [chance.randrange(1000) for _ in chance.rounds((50, 60))]
    if any(number > 900 for number in numbers):
        raise Violation(f"{max(numbers)} is large")
    return len(numbers)


SMALL = Target(name="small", invariant="numbers are small", run=run_small_numbers_only, smoke_examples=1)


def draws(chance: Chance) -> list[object]:
    names = list("abcdefgh")
    chance.shuffle(names)
    return [
        names,
        chance.random(),
        chance.choice(names),
        chance.randint(3, 9),
        chance.randrange(7),
        chance.randrange(2, 20, 3),
        chance.randrange(2**80),
        chance.sample(names, 3),
        chance.choices(names, k=3),
        chance.randbytes(5),
        chance.getrandbits(70),
        list(chance.rounds((3, 4))),
    ]


@pytest.mark.parametrize("seed", range(20))
def test_a_tape_draws_what_its_seed_does(seed: int) -> None:
    tape = Tape(seed=seed)
    assert draws(tape) == draws(Chance(seed)) == draws(Tape(numbers=tape.numbers))


def test_a_failure_prints_seed_and_replay_command_and_is_written_down(tmp_path: Path) -> None:
    report = run_target(SMALL, seed=7, examples=5, seconds=None, folder=tmp_path)
    assert not report.is_well
    text = "\n".join(report.text)
    assert text.startswith("small: numbers are small")
    assert "FAILED at seed 7:" in text
    assert "shrunk: 901 is large" in text
    path = tmp_path / "small" / "seed_7.json"
    assert f"python -m fuzz --replay {path}" in text
    assert "python -m fuzz --target small --replay 7" in text
    assert corpus_file.read(path).choices == [1, 901]
    assert not replay_file(SMALL, path).is_well


def test_the_corpus_is_tried_first(tmp_path: Path) -> None:
    corpus_file.write(corpus_file.Entry(target="small", found="950 is large", choices=[1, 950]), "past", tmp_path)
    report = run_target(SMALL, seed=0, examples=0, seconds=None, folder=tmp_path)
    assert not report.is_well
    assert any("FAILED, as once before: 950 is large" in line for line in report.text)


def test_bytes_and_large_numbers_come_back_from_a_file(tmp_path: Path) -> None:
    entry = corpus_file.Entry(target="x", found="ä", choices=[0, 2**53 + 1, 2**9000], data=b"\0\xff")
    assert corpus_file.read(corpus_file.write(entry, "y", tmp_path)) == entry
    broken = tmp_path / "broken.json"
    broken.write_text('{"target": 5')
    with pytest.raises(ValueError, match="is not a corpus file"):
        corpus_file.read(broken)


def test_a_canary_that_holds_is_a_failure(tmp_path: Path) -> None:
    canary = Target(name="canary", invariant="never", run=lambda _: 1, smoke_examples=1, must_fail=True)
    report = run_target(canary, seed=0, examples=3, seconds=None, folder=tmp_path)
    assert not report.is_well
    assert "must fail and did not" in "\n".join(report.text)


def test_a_rule_that_was_never_taken_is_a_failure(tmp_path: Path) -> None:
    def run(chance: Chance) -> int:
        chance.took("walk")
        return 1

    target = Target(name="rules", invariant="", run=run, smoke_examples=1, rules=("walk", "fly"))
    report = run_target(target, seed=0, examples=2, seconds=None, folder=tmp_path)
    before = report.is_well
    check_rules(target, report)
    assert (before, report.is_well) == (True, False)
    assert "never taken: fly" in report.text[-1]


@pytest.mark.parametrize("target", HONEST, ids=lambda target: target.name)
def test_a_history_follows_from_its_seed_and_can_be_played_again(target: Target) -> None:
    tape = Tape(seed=5)
    assert target.try_seed(5) == target.try_seed(5) == target.run(tape) > 0
    again = Tape(numbers=tape.numbers)
    target.run(again)
    assert again.numbers == tape.numbers


@pytest.mark.parametrize("target", HONEST, ids=lambda target: target.name)
def test_what_failed_once_holds(target: Target) -> None:
    report = run_target(target, seed=0, examples=0, seconds=None)
    assert report.is_well, "\n".join(report.text)


def test_every_file_of_the_corpus_belongs_to_a_target() -> None:
    for path in corpus_file.FOLDER.glob("*/*.json"):
        entry = corpus_file.read(path)
        assert path.parent.name == entry.target
        assert target_named(entry.target) is not None


@pytest.mark.parametrize("target", [target for target in HONEST if target.rules], ids=lambda target: target.name)
def test_every_rule_is_taken_within_the_smoke_run(target: Target) -> None:
    chance = Chance()
    for seed in range(target.smoke_examples):
        chance.seed(seed)
        target.run(chance)
        if set(target.rules) == set(chance.taken):
            return
    assert set(chance.taken) == set(target.rules)


@pytest.mark.parametrize("target", CANARIES, ids=lambda target: target.name)
def test_the_canary_is_found_out(target: Target) -> None:
    assert run_target(target, seed=0, examples=target.smoke_examples, seconds=None).is_well


@pytest.mark.parametrize(
    ("name", "steps_max"), [("canary", 2), ("sequence_canary", 3), ("rate_limiter_canary", 4), ("cache_canary", 2)]
)
def test_a_canary_shrinks(name: str, steps_max: int) -> None:
    target = target_named(name)
    assert target is not None
    for seed in range(target.smoke_examples):
        tape = Tape(seed=seed)
        error = play(target.run, tape)
        if error is None:
            continue
        shrinker = Shrinker(target.run, tape, error, seconds_max=10)
        shrinker.shrink()
        assert len(shrinker.tape.spans) <= steps_max < len(tape.spans) <= len(tape.numbers)
        assert type(play(target.run, Tape(numbers=shrinker.tape.numbers))) is type(error)
        return
    raise AssertionError("the canary held")
