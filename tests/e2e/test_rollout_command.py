"""`tpy rollout --plan` refuses what is no plan, and sends nothing then."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pytest

from tpy_tools.commands.rollout import rollout as rollout_command

from .server import run_tpy


def test_a_plan_that_cannot_be_read_is_not_sent(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for arguments, text in (
        (("--plan", str(file)), "--plan needs --start"),
        (("--start", "--plan", str(file)), f"--plan {file} cannot be read: [Errno 2] No such file"),
    ):
        assert text in run_tpy("rollout", "m", *arguments).err
    file.write_text("{")
    assert f"--plan {file} cannot be read: unexpected end of data" in run_tpy("rollout", "m", "--start", "--plan", str(file)).err


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (b'{"sticky": "' + 9000 * b"x", "it has more than 8192 bytes, expected at most 8192"),
        (b"[" * 8193, "it has more than 8192 bytes, expected at most 8192"),
        (b"", "Input is a zero-length, empty document"),
        (None, "standard input is closed"),
    ],
)
def test_a_plan_of_standard_input_that_cannot_be_read_is_not_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], given: bytes | None, reason: str
) -> None:
    monkeypatch.setattr(sys, "stdin", None if given is None else io.TextIOWrapper(io.BytesIO(given)))
    assert refused_plan(capsys, "-").startswith(f"tpy: error: --plan - cannot be read: {reason}")


def test_a_file_that_is_no_plan_is_not_sent(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    with file.open("wb") as content:
        content.truncate(2**40)
    assert refused_plan(capsys, str(file)).endswith("cannot be read: it has 1099511627776 bytes, expected at most 8192\n")
    assert refused_plan(capsys, str(tmp_path)).startswith(f"tpy: error: --plan {tmp_path} cannot be read: [Errno 21]")


def refused_plan(capsys: pytest.CaptureFixture[str], file: str) -> str:
    """The error of the command, which does not get as far as the server."""
    with pytest.raises(SystemExit) as ended:
        rollout_command.main(["m", "--url=localhost:1", "--start", "--plan", file])
    assert ended.value.code == 1
    return capsys.readouterr().err
