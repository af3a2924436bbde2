"""Files that another version of the server has written: what is not read is named, whatever else is in it."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import pytest

from tpy.config.rollout import RolloutPlan
from tpy.errors import Unavailable
from tpy_cloud.copies import LocalCopies
from tpy_data.engine.budget.core.sizes import KeptSize, KeptSizes
from tpy_data.engine.budget.memory_budget import read_sizes
from tpy_data.engine.rollouts.core.rollout import RolloutState
from tpy_data.engine.rollouts.kept import Kept, read_kept

SIZE = KeptSize("abc", "onnxruntime", 2, 1)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "file.json"


def test_rollouts_of_this_format_and_of_none_are_read(file: Path) -> None:
    line = Kept(1, 2, 0, RolloutState.ROLLED_BACK, "as asked")
    file.write_bytes(msgspec.json.encode({"m": line}))
    assert b'"format":1' in file.read_bytes()
    assert read_kept(file).lines == {"m": line}
    file.write_text('{"m": {"version": 1, "new": 2, "state": "rolled back", "reason": "as asked"}}')
    assert read_kept(file).lines == {"m": line}, "as it was written before there were formats"
    with_plan = msgspec.structs.replace(line, format=2, plan=RolloutPlan(min_requests=7))
    file.write_bytes(msgspec.json.encode({"m": with_plan}))
    assert read_kept(file).lines == {"m": with_plan}


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        ('{"steps": [{"percent": 1, "seconds": 1e300}]}', "Expected `float` <= 100000000.0"),
        (f'{{"min_requests": {2**64}}}', "Expected `int` <= 1000000000"),
        ('{"sticky": "x"}', "sticky is 'x', expected"),
    ],
)
def test_a_server_starts_with_a_plan_that_is_not_taken_any_more(
    file: Path, caplog: pytest.LogCaptureFixture, plan: str, reason: str
) -> None:
    line = '{"version": 1, "new": 2, "state": "rolled back", "reason": "bad", "format": 2, "plan": %s}'
    file.write_text(f'{{"a": {{"version": 3}}, "m": {line % plan}}}')
    decided = Kept(1, 2, 0, RolloutState.ROLLED_BACK, "bad", 2, RolloutPlan())
    assert read_kept(file).lines == {"a": Kept(3), "m": decided}, "it stays rolled back"
    [said] = [record.getMessage() for record in caplog.records]
    assert said.startswith(f"model 'm': the plan in --rollout-file does not hold any more, the default one does: {reason}")


def test_a_line_of_rollouts_that_is_wrong_is_refused(file: Path) -> None:
    for line in (
        '{"version": 1, "new": 2, "step": -2}',
        '{"version": "two", "plan": {}}',
        '{"version": 1, "plan": ' + "[" * 5000 + "]" * 5000 + "}",
    ):
        file.write_text(f'{{"m": {line}}}')
        with pytest.raises(Unavailable, match=r"--rollout-file .* cannot be read"):
            read_kept(file)


@pytest.mark.parametrize("content", [b'{"m\xff": {"version": 1}}', b'{"m": {"version": 1, "reason": "\xff"}}'])
def test_rollouts_that_are_not_text_are_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(Unavailable, match=r"--rollout-file .* cannot be read"):
        read_kept(file)


def test_rollouts_of_a_newer_format_are_refused(file: Path) -> None:
    file.write_text('{"a": {"version": 1}, "m": {"format": 3, "state": {"unheard": "of"}}}')
    with pytest.raises(Unavailable) as refused:
        read_kept(file)
    assert str(refused.value) == (
        f"--rollout-file {file} cannot be read: model 'm' has format 3, expected at most 2: a newer tpy has written it; "
        "start that one, or remove the file to begin with the newest version of each model"
    )


def test_sizes_of_another_format_are_measured_anew(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    file.write_bytes(msgspec.json.encode(KeptSizes(1, {"m:1": SIZE})))
    assert read_sizes(file) == {"m:1": SIZE}
    assert not caplog.records
    file.write_text('{"format": 2, "models": ["of", "another", "kind"]}')
    assert read_sizes(file) == {}
    assert [record.getMessage() for record in caplog.records] == [
        f"--model-sizes-file {file} has format 2, expected 1: sizes are measured anew"
    ]


@pytest.mark.parametrize(
    "content",
    [b'{"format": 1, "models": {}, "x": ' + b"[" * 100_000, b'{"format": 1, "models": {"\xff": {}}}'],
    ids=["nested", "not text"],
)
def test_sizes_that_cannot_be_read_are_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(Unavailable, match=r"--model-sizes-file .* cannot be read"):
        read_sizes(file)


def test_copies_of_another_format_are_made_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manifest = tmp_path / "repository" / "m.json"
    manifest.parent.mkdir()
    manifest.write_text('{"format": 2, "files": "elsewhere"}')
    copies = LocalCopies(tmp_path, keep=True, bytes_max=1)
    with caplog.at_level(logging.WARNING):
        copies.open()
    copies.close()
    assert copies.size_bytes() == 0
    assert [record.getMessage() for record in caplog.records] == [
        f"--repository-cache: {manifest} has format 2, expected 1: the model is downloaded anew"
    ]
