"""Starts a worker: `python <this file> <connection's descriptor> <tokens' descriptor> <server's process id> <instance>`, and
behind that the order of `sandbox.enter` in JSON, for a worker in a sandbox. The name of the instance is there for people who look
at processes.

Or the template that workers are forked from: `python <this file> --template <control descriptor> <server's process id> <room>`,
where the room is as long as a worker's arguments may be; and behind that `--hosting`, if they run backends of the server.
"""

import contextlib
import importlib
import json
import os
import signal
import socket
import sys
from typing import Any

TEMPLATE = "--template"
HOSTING = "--hosting"
PR_SET_PDEATHSIG = 1

INTERNAL = 1
"""Of TRITONSERVER_Error_Code."""


def main() -> None:
    """Set the process up, say hello, then hand over to `main.serve`."""
    arguments = sys.argv[1:]
    folder = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or os.curdir) != folder]
    sys.path.append(os.path.join(folder, "importable"))
    sys.argv[:] = [""]
    package = importlib.import_module("tpy_worker_package")
    package.load()
    if arguments[0] == TEMPLATE:
        forked = be_template(package.NAME, int(arguments[1]), int(arguments[2]), hosting=HOSTING in arguments)
        if forked is not None:
            (connection, tokens), parent = forked
            be_worker(package.NAME, connection, tokens, parent)
    else:
        connection, tokens, server = map(int, arguments[:3])
        be_worker(package.NAME, connection, tokens, server, "".join(arguments[4:]))


def be_template(package: str, control: int, server: int, *, hosting: bool) -> Any:
    """See `template.serve`."""
    os.set_inheritable(control, False)
    die_with(server)
    importlib.import_module(package + ".main")
    if hosting:
        with contextlib.suppress(ImportError, SyntaxError):  # a worker says so
            importlib.import_module(package + ".hosting.runner")
    template = importlib.import_module(package + ".template")
    return template.serve(socket.socket(fileno=control))


def be_worker(package: str, connection: int, tokens: int, parent: int, sandbox: str = "") -> None:
    """Until the server says stop, or is gone, or the parent is."""
    frames = importlib.import_module(package + ".wire.core.frames")
    for descriptor in (connection, tokens):
        os.set_inheritable(descriptor, False)  # what the model starts has no part in them
    server = socket.socket(fileno=connection)
    send(server, frames.encode(frames.FrameKind.HELLO, 0, b"{}", [], 0))
    try:
        die_with(parent)
        if sandbox:
            importlib.import_module(package + ".sandbox").enter(json.loads(sandbox))
        worker = importlib.import_module(package + ".main")
    except Exception as error:
        reason = f"{sys.executable} cannot run a worker of the python backend: {type(error).__name__}: {error}"
        send(server, frames.encode(frames.FrameKind.FAILED, 0, json.dumps([INTERNAL, reason]).encode(), [], 0))
        return
    worker.serve(server, socket.socket(fileno=tokens))


def send(server: socket.socket, buffers: list[bytes]) -> None:
    """Send a frame, with nothing but the standard library: an interpreter without numpy has to say so."""
    server.sendall(b"".join(buffers))


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies, however that happens: the server, or a template, which dies with
    the server."""
    import ctypes
    import faulthandler

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it died before the line above
    faulthandler.enable()
    # Asks for the stacks of all threads, also where native code holds the interpreter. By default this signal does nothing.
    faulthandler.register(signal.SIGURG)


# Processes that a model starts with multiprocessing run this file too, under another name.
if __name__ == "__main__":
    main()
