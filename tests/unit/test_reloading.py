"""Files that are read again: once for all who have asked for it."""

from __future__ import annotations

import logging

import pytest

from tpy.reloading import reload, reloaded


class Files:
    def __init__(self) -> None:
        self.count = 0

    def read(self) -> None:
        self.count += 1
        raise ValueError("not as it should be")


def test_what_several_have_asked_for_is_read_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    shared, other = Files(), Files()
    with reloaded(shared.read):
        with reloaded(shared.read), reloaded(other.read):
            reload("SIGHUP")
        reload("SIGHUP")
    assert caplog.text.count("reloaded in part only at SIGHUP") == 2
    reload("SIGHUP")
    assert (shared.count, other.count) == (2, 1)
    assert caplog.text.count("not as it should be") == 3
    assert caplog.text.count("reloaded at SIGHUP") == 1, "only when nothing failed"
