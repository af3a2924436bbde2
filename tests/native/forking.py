"""A plug-in for `PluginProcess` that leaves a process behind."""

from __future__ import annotations

import os
import signal

from tpy_native.process.serving import serve


class Forking:
    """Answers with the id of a process that does not end."""

    def answer(self, request: bytes) -> bytes:
        child = os.fork()
        if not child:
            os.closerange(3, 1024)  # the server sees the end of its parent at once
            signal.pause()
        return str(child).encode()

    def close(self) -> None:
        pass


if __name__ == "__main__":
    serve(lambda settings, ask: Forking())
