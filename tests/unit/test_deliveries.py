"""Deliveries: what is done once for answers that are given together."""

from __future__ import annotations

import pytest

from tpy.deliveries import Deliveries


def test_outside_of_a_block_nothing_is_called() -> None:
    called: list[str] = []
    assert not Deliveries().afterwards(lambda: called.append("x"))
    assert not called


def test_each_is_called_once_when_the_outermost_block_ends() -> None:
    deliveries = Deliveries()
    called: list[str] = []

    def write_a() -> None:
        called.append("a")

    def write_b() -> None:
        called.append("b")

    with deliveries:
        assert deliveries.afterwards(write_a)
        with deliveries:
            assert deliveries.afterwards(write_b)
            assert deliveries.afterwards(write_a)
        assert not called
    assert called == ["a", "b"]
    assert not deliveries.afterwards(write_a)
    with deliveries:
        pass
    assert called == ["a", "b"]


def test_what_was_given_before_a_failure_is_passed_on() -> None:
    deliveries = Deliveries()
    called: list[str] = []

    def give() -> None:
        with deliveries:
            deliveries.afterwards(lambda: called.append("a"))
            raise ValueError("bug")

    with pytest.raises(ValueError, match="bug"):
        give()
    assert called == ["a"]


def test_what_is_called_may_give_answers_itself() -> None:
    deliveries = Deliveries()
    called: list[str] = []

    def write() -> None:
        called.append("first")
        with deliveries:
            deliveries.afterwards(lambda: called.append("second"))

    with deliveries:
        deliveries.afterwards(write)
    assert called == ["first", "second"]
