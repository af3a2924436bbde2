"""The pause of the garbage collector."""

from __future__ import annotations

import gc

import pytest

from tpy.frontends.http.codec.json_text import CollectorPause


def test_the_collector_runs_again_when_the_last_has_left() -> None:
    pause = CollectorPause()
    with pause:
        with pause:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_also_after_an_error() -> None:
    pause = CollectorPause()
    with pytest.raises(ValueError, match="broken"), pause:
        raise ValueError("broken")
    assert gc.isenabled()


def test_a_collector_that_was_off_stays_off() -> None:
    gc.disable()
    try:
        with CollectorPause():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
