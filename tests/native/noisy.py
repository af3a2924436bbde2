"""A plug-in for `PluginProcess` that writes much more than a pipe holds."""

from __future__ import annotations

import os

from tpy_native.process.serving import serve

LINES = 4_000
LINE = b"x" * 99


class Noisy:
    """Writes before each answer."""

    def answer(self, request: bytes) -> bytes:
        os.write(2, b"ERROR it does not stop\n")
        os.write(1, (LINE + b"\n") * LINES)
        return request

    def close(self) -> None:
        pass


if __name__ == "__main__":
    serve(lambda settings, ask: Noisy())
