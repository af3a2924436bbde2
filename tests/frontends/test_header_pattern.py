"""Forward patterns, as the real Triton 2.51 answers them: which of these headers came as parameters of a request."""

from __future__ import annotations

import pytest

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.frontends.header_pattern import HeaderPattern

NAMES = ("X-Fwd-One", "x-fwd-two", "My-Thing", "prefix-my-thing", "other")

ANSWERED = {
    ".*": NAMES,
    "x-fwd": ("X-Fwd-One", "x-fwd-two"),
    "X-FWD": ("X-Fwd-One", "x-fwd-two"),
    "my-.*": ("My-Thing", "prefix-my-thing"),
    "^my-": ("My-Thing",),
    "my-$": (),
    "(?-i)X-Fwd.*": ("X-Fwd-One",),
    "(?i)x-fwd.*": ("X-Fwd-One", "x-fwd-two"),
    r"\p{Lu}.*": NAMES,
    "(?P<n>my)-thing": ("My-Thing", "prefix-my-thing"),
    "[[:alpha:]]-.*": ("X-Fwd-One", "x-fwd-two", "My-Thing", "prefix-my-thing"),
}


@pytest.mark.parametrize("pattern", ANSWERED)
def test_patterns_match_as_triton_s(pattern: str) -> None:
    made = HeaderPattern(pattern, flag="f")
    for _ in range(2):  # the second time from memory
        assert tuple(name for name in NAMES if made.matches(name)) == ANSWERED[pattern]


@pytest.mark.parametrize("pattern", ["(", "(?=a)", "a**", "\\1"])
def test_what_re2_does_not_take_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidArgument, match=r"^--f is not a regular expression: .+"):
        HeaderPattern(pattern, flag="f")


def test_what_is_remembered_is_bounded() -> None:
    pattern = HeaderPattern("7$", flag="f")
    for number in range(4 * limits.HEADER_NAMES_REMEMBERED_MAX):
        assert pattern.matches(f"x-{number}") is (number % 10 == 7)
    assert pattern.matches("y" * 10_000 + "7")
    assert len(pattern.known) == limits.HEADER_NAMES_REMEMBERED_MAX
    assert all(len(name) <= limits.HEADER_NAME_REMEMBERED_CHARACTERS_MAX for name in pattern.known)


def test_a_pattern_that_backtracks_elsewhere_takes_linear_time() -> None:
    """Python's own would need 2 to the power of 10,000 steps."""
    assert not HeaderPattern("^(x|x)*$z", flag="f").matches("x" * 10_000)
