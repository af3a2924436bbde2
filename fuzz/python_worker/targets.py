"""The targets of the protocol between server and python worker."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.python_worker import lies, messages, talk
from fuzz.target import Target
from tpy_data.backends.python.worker.wire.core.frames import FrameDecoder, FrameKind
from tpy_data.backends.python.worker.wire.core.windows import Window


class WideWindow(Window):
    """Wrong on purpose: what was taken is forgotten but for its number."""

    def taken(self, count: int) -> int:
        super().taken(count)
        return 0


class LooseDecoder(FrameDecoder):
    """Wrong on purpose: bytes behind a frame are lost."""

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        self.pending = self.pending[:64]
        super().feed(chunk)


def _canary(chance: Chance) -> int:
    return messages.run_frames(chance, LooseDecoder)


def _window_canary(chance: Chance) -> int:
    return talk.run_window(chance, WideWindow)


FRAMES = Target(
    name="worker_frames", invariant=messages.FRAMES, run=messages.run_frames, smoke_examples=8000, attack=messages.attack
)
CANARY = Target(
    name="worker_frames_canary",
    invariant="a decoder that loses bytes is found out",
    run=_canary,
    smoke_examples=100,
    must_fail=True,
)
TENSORS = Target(name="worker_tensors", invariant=messages.TENSORS, run=messages.run_tensors, smoke_examples=2000)
SESSION = Target(
    name="worker_session",
    invariant=talk.SESSION,
    run=talk.run_session,
    smoke_examples=2000,
    rules=(*(kind.name for kind in FrameKind), "violation", "break off"),
)
LIES = Target(
    name="worker_lies",
    invariant=lies.LIES,
    run=lies.run,
    smoke_examples=300,
    rules=("sound", "lie", "garbage", "lost", "outcome", "revoked", "not started"),
)
WINDOW = Target(
    name="worker_window",
    invariant=talk.WINDOW,
    run=talk.run_window,
    smoke_examples=2000,
    rules=("send", "full", "arrive", "take", "tell", "hear", "lie"),
)
WINDOW_CANARY = Target(
    name="worker_window_canary",
    invariant="a window that miscounts bytes is found out",
    run=_window_canary,
    smoke_examples=100,
    must_fail=True,
)
