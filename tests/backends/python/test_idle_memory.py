"""Memory that is given back while there are no requests: free segments, by their ends."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import numpy as np
import pytest

from tpy_data.backends.python.worker.wire import endpoint as endpoint_module
from tpy_data.backends.python.worker.wire.core.batch import INLINE_BYTES_MAX, Layout
from tpy_data.backends.python.worker.wire.core.frames import FrameKind
from tpy_data.backends.python.worker.wire.endpoint import NO_TENSORS, Endpoint
from tpy_data.backends.python.worker.wire.segments import Borrower, Lender


def _lent(lender: Lender, size: int) -> tuple[int, int, int]:
    layout = Layout()
    layout.add("x", 2, np.full(size, 7, np.uint8))
    loan = lender.take(layout.segment_bytes)
    loan.write(layout.placed)
    return loan.number, loan.size, loan.descriptor


def test_pages_of_free_segments_are_given_back_and_the_segments_stay() -> None:
    lender, borrower = Lender(), Borrower(writable=False)
    number, size, file = _lent(lender, 100_000)
    watched = os.dup(file)
    borrower.borrow(number, size, file)
    held, _, held_file = _lent(lender, 100_000)
    whole = borrower.borrow(held, size, held_file)
    assert os.fstat(watched).st_blocks > 0
    lender.take_back(borrower.take_released())
    lender.give_memory_back()
    assert os.fstat(watched).st_blocks == 0
    os.close(watched)
    assert whole[:100_000].min() == 7, "somebody looks at it"
    again, _, file = _lent(lender, 100_000)
    assert (again, file) == (number, -1)
    assert borrower.borrow(again, size, None)[:100_000].min() == 7


def test_pages_of_a_dropped_segment_are_gone_before_the_peer_is_told() -> None:
    lender, borrower = Lender(), Borrower(writable=False)
    lent = [_lent(lender, size) for size in (100_000, 40_000_000, 40_000_000)]
    watched = os.dup(lent[0][2])
    for number, size, file in lent:
        borrower.borrow(number, size, file)
    lender.take_back(borrower.take_released())
    assert os.fstat(watched).st_blocks == 0
    assert lender.take_dropped() == [lent[0][0]]
    os.close(watched)


def test_the_servers_end_leaves_the_pages_of_dropped_segments_to_the_worker() -> None:
    """Freeing takes 0.1 ms a MiB and more, and the server receives on its loop."""
    ours, theirs = socket.socketpair()
    server, worker = Endpoint(ours, writable=False, on_loop=True), Endpoint(theirs, writable=True)
    loans = [loan for size in (100_000, 40_000_000, 40_000_000) if (loan := server.lend(_large(size))) is not None]
    watched = os.dup(loans[0].descriptor)
    for loan in loans:
        server.write(FrameKind.HELLO, 0, b"{}", NO_TENSORS, loan)
        worker.receive()  # and nobody looks at the tensor
    worker.write(FrameKind.HELLO, 0, b"{}")
    server.receive()
    assert os.fstat(watched).st_blocks > 0
    server.give_memory_back()
    assert server.has_note, "the worker is told by the message that follows"
    server.write(FrameKind.HELLO, 0, b"{}")
    del loans, loan
    worker.receive()
    assert _mappings(watched) == 0, "unmapped by both, its memory is free"
    os.close(watched)
    server.close()
    worker.close()


def _mappings(file: int) -> int:
    """Of an anonymous file, in this process."""
    inode = f" {os.fstat(file).st_ino} "
    return sum(inode in line for line in Path("/proc/self/maps").read_text().splitlines())


def test_an_end_that_waits_for_long_gives_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = (Endpoint(end, writable=True) for end in socket.socketpair())
    trims: list[int] = []

    def trim() -> None:
        trims.append(len(trims))
        theirs.write(FrameKind.HELLO, 0, b"{}")

    monkeypatch.setattr(endpoint_module, "IDLE_MS", 1)
    monkeypatch.setattr(endpoint_module, "trim", trim)
    loan = ours.lend(_large())
    assert loan is not None
    watched = os.dup(loan.descriptor)
    ours.write(FrameKind.HELLO, 0, b"{}", NO_TENSORS, loan)
    theirs.receive()  # and nobody looks at the tensor
    theirs.write(FrameKind.HELLO, 0, b"{}")
    ours.receive()
    assert os.fstat(watched).st_blocks > 0
    ours.receive()
    assert os.fstat(watched).st_blocks == 0
    assert trims == [0]
    os.close(watched)
    ours.close()
    theirs.close()


def _large(size: int = INLINE_BYTES_MAX + 1) -> Layout:
    layout = Layout()
    layout.add("x", 2, np.full(size, 7, np.uint8))
    return layout
