"""The process of a strategy: `python -m tpy_native.strategies.process`, started by the server (`opening`)."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tpy_native.process.serving import Ask, serve
from tpy_native.strategies.library import StrategyFailure, StrategyLibrary, StrategyModel
from tpy_native.strategies.requests import ShownRequest, read


class _Server:
    def __init__(self, library: StrategyLibrary, ask: Ask) -> None:
        self._library = library
        self._ask = ask
        self._is_forming = False

    def answer(self, message: bytes) -> bytes:
        question = read(message)
        failures: list[str] = []
        for event in question.said:
            self._notify(event, failures)
        if not self._is_forming:  # the server began this batch before this process was started
            self._notify("begin", failures)
        included, failure = self._library.include(ShownRequest(question, self._ask))
        if failure:
            failures.append(f"Custom batching include function failed: {failure}")
        return (b"1" if included else b"0") + "; ".join(failures).encode()[:60_000]

    def _notify(self, event: str, failures: list[str]) -> None:
        is_begin = event == "begin"
        if is_begin is self._is_forming:
            return
        self._is_forming = is_begin
        try:
            (self._library.begin if is_begin else self._library.end)()
        except StrategyFailure as error:
            failures.append(str(error))

    def close(self) -> None:
        self._library.close()


def _open(settings: dict[str, str], ask: Ask) -> _Server:
    model = msgspec.json.decode(settings["model"], type=StrategyModel)
    return _Server(StrategyLibrary(Path(settings["library"]), model), ask)


if __name__ == "__main__":
    serve(_open)
