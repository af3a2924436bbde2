"""Starts a worker: `python <this file> <connection's descriptor> <tokens' descriptor> <server's process id> <instance>`. The
name of the instance is there for people who look at processes."""

import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

PR_SET_PDEATHSIG = 1

INTERNAL = 1
"""Of TRITONSERVER_Error_Code."""


def main() -> None:
    """Set the process up, say hello, then hand over to `main.serve`."""
    connection, tokens, server = map(int, sys.argv[1:4])
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != folder]
    sys.path.append(os.path.join(folder, "importable"))
    sys.argv[:] = [""]
    package = importlib.import_module("tpy_worker_package")
    package.load()
    channel_module = importlib.import_module(package.NAME + ".channel")
    frames = importlib.import_module(package.NAME + ".core.frames")
    for descriptor in (connection, tokens):
        os.set_inheritable(descriptor, False)  # what the model starts has no part in them
    channel = channel_module.Channel(socket.socket(fileno=connection), process=os.getpid())
    send(channel, frames.encode(frames.Kind.HELLO, 0, b"{}", [], 0))
    try:
        die_with(server)
        worker = importlib.import_module(package.NAME + ".main")
    except Exception as error:
        reason = f"{sys.executable} cannot run a worker of the python backend: {type(error).__name__}: {error}"
        send(channel, frames.encode(frames.Kind.FAILED, 0, json.dumps([INTERNAL, reason]).encode(), [], 0))
        return
    worker.serve(channel, socket.socket(fileno=tokens))


def send(channel: Any, buffers: list[Any]) -> None:
    """Send a frame."""
    channel.send(buffers, sum(map(len, buffers)))


def die_with(server: int) -> None:
    """Have the kernel kill this process when the server dies, however that happens."""
    import ctypes
    import faulthandler

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != server:
        os._exit(1)  # it died before the line above
    faulthandler.enable()


# Processes that a model starts with multiprocessing run this file too, under another name.
if __name__ == "__main__":
    main()
