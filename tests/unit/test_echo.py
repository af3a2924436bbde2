from __future__ import annotations

from tpy import limits
from tpy.echo import echo, echo_list, request_prefix
from tpy.errors import InvalidArgument


def test_ordinary_texts_stay_as_they_are() -> None:
    assert echo("") == ""
    assert echo("x" * limits.ECHO_CHARACTERS_MAX) == "x" * limits.ECHO_CHARACTERS_MAX
    assert echo_list([]) == ""
    assert echo_list(["'a'", "'b'"]) == "'a','b'"
    assert echo_list((1, -1)) == "1,-1"
    assert request_prefix("") == "[request id: <id_unknown>] "
    assert request_prefix("7") == "[request id: 7] "


def test_long_texts_are_cut_with_a_mark() -> None:
    text = echo("x" * (limits.ECHO_CHARACTERS_MAX + 5))
    assert text == "x" * limits.ECHO_CHARACTERS_MAX + "... (5 more characters)"
    assert request_prefix("x" * 5000).endswith("... (3976 more characters)] ")


def test_long_lists_are_cut_with_a_mark() -> None:
    text = echo_list("xxxx" for _ in range(30_000))
    shown = limits.ECHO_LIST_CHARACTERS_MAX // 4
    assert text == ",".join(["xxxx"] * shown) + f", ... and {30_000 - shown} more"
    assert len(echo_list(["x" * 10**6] * 1000)) < 2 * limits.ECHO_LIST_CHARACTERS_MAX


def test_no_error_is_longer_than_its_bound() -> None:
    error = InvalidArgument("x" * 10**6)
    assert len(error.message) < limits.ERROR_CHARACTERS_MAX + 100
    assert str(error) == error.message
