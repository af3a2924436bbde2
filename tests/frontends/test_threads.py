"""Threads of the frontends: results, errors, and what they keep."""

from __future__ import annotations

import contextlib
import gc
import traceback
import weakref
from collections.abc import Iterator

import pytest
import trio

from tpy.errors import InvalidArgument
from tpy.frontends.threads import run_in_thread


class Document(list[int]):
    """Something that a weak reference can watch."""


@pytest.fixture(autouse=True)
def no_collection() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


async def test_results_come_back() -> None:
    assert await run_in_thread(lambda a, b: a + b, 1, 2, limiter=trio.CapacityLimiter(1)) == 3


@pytest.mark.parametrize("kind", [InvalidArgument, ValueError])
async def test_errors_let_go_of_what_they_were_about(kind: type[Exception]) -> None:
    watched: list[weakref.ref[Document]] = []

    def parse(text: str) -> None:
        document = Document(range(10))
        watched.append(weakref.ref(document))
        try:
            raise KeyError(document)
        except KeyError:
            raise kind(text) from None

    with pytest.raises(kind, match="broken") as caught:
        await run_in_thread(parse, "broken", limiter=trio.CapacityLimiter(1))
    assert [document() for document in watched] == [None]
    if kind is ValueError:  # a bug of ours: the log says where
        assert "in parse" in "".join(traceback.format_exception(caught.value))


async def test_nothing_is_kept_when_the_error_was_handled() -> None:
    class Broken(ValueError):
        pass

    watched: list[weakref.ref[Broken]] = []

    def parse() -> None:
        error = Broken()
        watched.append(weakref.ref(error))
        raise error

    async def handle() -> None:
        with contextlib.suppress(Broken):
            await run_in_thread(parse, limiter=trio.CapacityLimiter(1))
            pytest.fail("no error")

    await handle()
    await handle()
    assert watched[0]() is None
