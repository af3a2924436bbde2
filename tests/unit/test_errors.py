"""The error taxonomy."""

from __future__ import annotations

from tpy.errors import Internal


def test_a_message_can_always_be_written_as_utf_8() -> None:
    error = Internal("ü: half \ud800 a pair")
    assert error.message == str(error) == "ü: half \\ud800 a pair"
    assert error.reason().encode() == "Internal: ü: half \\ud800 a pair".encode()
