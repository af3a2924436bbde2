"""Keeps the outcome of every request that was sent."""

from __future__ import annotations

import re
import threading
from collections import Counter

from tests.e2e.waiting import wait_until

_VARIES = re.compile(r"\d+")
_SHOWN_CHARACTERS = 110


class Ledger:
    """Counts outcomes; written by many threads. Every request that was sent ends in exactly one of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.sent = 0
        self.answered: Counter[str] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        self.cut: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.overdue: list[str] = []

    def send(self) -> None:
        """A request goes out."""
        with self._lock:
            self.sent += 1

    def take_back(self) -> None:
        """It did not go out: there was no connection to be had."""
        with self._lock:
            self.sent -= 1

    def answer(self, model: str) -> None:
        """The right answer came."""
        with self._lock:
            self.answered[model] += 1

    def refuse(self, model: str, text: str) -> None:
        """The server said that it does not answer, and why."""
        with self._lock:
            self.refused[model, _VARIES.sub("N", text.strip().splitlines()[-1] if text.strip() else "(no text)")] += 1

    def end(self, model: str) -> None:
        """The connection ended before the answer."""
        with self._lock:
            self.cut[model] += 1

    def mistake(self, text: str) -> None:
        """An answer that is not right."""
        with self._lock:
            self.wrong.append(text)

    def give_up(self, text: str) -> None:
        """No answer came, for far longer than one may take."""
        with self._lock:
            self.overdue.append(text)

    @property
    def lost(self) -> int:
        """Requests of which nothing was heard. Only to be asked when nobody sends any more."""
        heard = self.answered.total() + self.refused.total() + self.cut.total() + len(self.wrong)
        return self.sent - heard

    def wait_answered(self, count: int, *models: str) -> None:
        """Wait until so many more requests were answered (of each of these models, if any are named)."""
        goals = {model: self.answered[model] + count for model in models}
        total = self.answered.total() + count
        if models:
            wait_until(lambda: all(self.answered[model] >= goal for model, goal in goals.items()))
        else:
            wait_until(lambda: self.answered.total() >= total)

    def refusals(self, *models: str) -> int:
        """The number of refused requests, of these models or of all."""
        with self._lock:
            return sum(count for (model, _), count in self.refused.items() if not models or model in models)

    def check(self, *, refused: str = "", refused_models: tuple[str, ...] = (), cut: bool = False) -> None:
        """Nothing wrong, nothing lost; only these models were refused, with texts that match `refused`; nothing cut unless
        that may be."""
        assert not self.wrong, self.wrong[:5]
        assert not self.overdue, self.overdue[:5]
        assert self.lost == 0, f"{self.lost} of {self.sent} lost"
        assert cut or not self.cut, self.cut
        for (model, text), count in self.refused.items():
            expected = bool(refused) and model in refused_models and bool(re.search(refused, text))
            assert expected, f"{model}: {text} ({count} times)"

    def __str__(self) -> str:
        texts = Counter[str]()
        for (_, text), count in self.refused.items():
            texts[text] += count
        named = "; ".join(f"{count} x {_short(text)}" for text, count in texts.most_common(4))
        refused = f"{self.refused.total():,} refused" + (f" ({named})" if named else "")
        cut = f"{self.cut.total():,} cut, " if self.cut else ""
        return f"{self.sent:,} sent, {self.answered.total():,} answered, {refused}, {cut}lost: {self.lost}"


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
