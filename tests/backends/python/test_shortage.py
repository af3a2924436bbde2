"""Segments and workers without address space for what comes."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.backends.python.conftest import Serve, request
from tests.shortage import address_space_is_short
from tpy.errors import Unavailable
from tpy_data.backends.python.worker.wire.core.batch import NoMemory, read
from tpy_data.backends.python.worker.wire.core.frames import ProtocolViolation
from tpy_data.backends.python.worker.wire.segments import Borrower, Lender


def test_a_segment_without_address_space_is_tried_again() -> None:
    """It was the end of the worker, and of all that it did."""
    lender, borrower = Lender(), Borrower(writable=False)
    loan = lender.take(1 << 30)
    with address_space_is_short():
        refused = borrower.borrow(loan.number, loan.size, os.dup(loan.descriptor))
    assert isinstance(refused, NoMemory)
    with pytest.raises(NoMemory, match="no address space for 1073741824 bytes"):
        read(("x", 3, (8,), 1, 0, 8), memoryview(b""), refused)
    assert borrower.take_released() == [loan.number]
    with pytest.raises(ProtocolViolation, match="was sent twice"):
        borrower.borrow(loan.number, loan.size, os.dup(loan.descriptor))
    loan.sent()
    with address_space_is_short():
        assert isinstance(borrower.borrow(loan.number, loan.size, None), NoMemory)
    whole = borrower.borrow(loan.number, loan.size, None)
    assert isinstance(whole, np.ndarray)
    assert whole.size == 1 << 30
    with pytest.raises(ProtocolViolation, match="is not known"):
        borrower.borrow(loan.number, loan.size + 1, None)


def test_files_of_segments_that_cannot_be_mapped_are_closed() -> None:
    lender, borrower = Lender(), Borrower(writable=False)
    for end in (lambda: borrower.drop([1]), borrower.close):
        loan = lender.take(1 << 30)
        before = set(os.listdir("/proc/self/fd"))
        with address_space_is_short():
            borrower.borrow(loan.number, loan.size, os.dup(loan.descriptor))
        assert set(os.listdir("/proc/self/fd")) > before
        end()
        assert set(os.listdir("/proc/self/fd")) == before
        loan.sent()


def test_a_worker_without_address_space_for_inputs_refuses_them_and_goes_on(make: Serve) -> None:
    served = make("""
        import resource
        class TritonPythonModel:
            def initialize(self, args):
                pages = int(open("/proc/self/statm").read().split()[0])
                resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (64 << 20),) * 2)
            def execute(self, requests):
                return [answer(tensor(given(r)[:3])) for r in requests]
    """)
    served.output()
    pid = served.python.pid
    large = request(np.zeros(20 << 20, np.float32))
    for _ in range(2):
        with pytest.raises(Unavailable, match="the inputs cannot be taken: no address space for 134217728 bytes"):
            served.run(large)
        assert served.output().tolist() == [0, 1, 2]
    assert served.python.pid == pid


def test_an_answer_for_which_there_is_no_address_space_fails_its_request_only(make: Serve) -> None:
    """It was the end of the worker."""
    served = make("""
        class TritonPythonModel:
            def execute(self, requests):
                return [answer(tensor(np.ones(int(given(r)[0]), np.float32))) for r in requests]
    """)
    assert served.output(request(np.ones(1, np.float32))).tolist() == [1]
    pid = served.python.pid
    with address_space_is_short():
        refused = served.run(request(np.full(1, 100 << 20, np.float32)))[0].error
    assert isinstance(refused, Unavailable)
    assert refused.message.startswith("the answer cannot be taken: no address space for 536870912 bytes of shared memory")
    assert served.output(request(np.full(1, 3, np.float32))).tolist() == [1, 1, 1]
    assert served.python.pid == pid
