"""The process of a plug-in, from inside: opens the plug-in, and answers one request after the other."""

from __future__ import annotations

import logging
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO, Final, Protocol

import msgspec

from tpy.errors import TpyError
from tpy_native.process.metrics import MetricSender
from tpy_native.process.plugin_process import LENGTH
from tpy_native.surroundings import code_of, log_without_model, surroundings

_END_S_MAX: Final = 5.0


class Hosted(Protocol):
    """An open plug-in."""

    def answer(self, request: bytes) -> bytes:
        """Do what is asked. Must not raise."""
        ...

    def close(self) -> None:
        """Nothing follows. Raises TpyError."""
        ...


Ask = Callable[[bytes], bytes]
"""Sends something to the server in place of an answer, and returns what it has to say to that."""


def serve(open_plugin: Callable[[dict[str, str], Ask], Hosted]) -> None:
    """Answer over the sockets that the command line names, until the server closes its end."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    os.dup2(2, 1)  # what a plug-in prints is for people
    requests, changes = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    threading.Thread(target=_watch, args=(changes,), daemon=True).start()
    surroundings.enter(log_without_model, MetricSender(changes))
    try:
        _answer_all(requests, open_plugin)
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)  # the server has given this process up


def _answer_all(requests: socket.socket, open_plugin: Callable[[dict[str, str], Ask], Hosted]) -> None:
    with requests.makefile("rb") as source, requests.makefile("wb") as target:

        def ask(message: bytes) -> bytes:
            _send(target, message)
            return _receive(source)

        settings = msgspec.json.decode(_receive(source), type=dict[str, str])
        try:
            hosted = open_plugin(settings, ask)
        except TpyError as error:
            _send(target, bytes([code_of(error)]) + error.message.encode())
            return
        _send(target, b"")
        while request := _receive(source):
            _send(target, hosted.answer(request))
        hosted.close()


def _receive(source: BinaryIO) -> bytes:
    """Empty at the end."""
    head = source.read(LENGTH.size)
    return source.read(LENGTH.unpack(head)[0]) if len(head) == LENGTH.size else b""


def _send(target: BinaryIO, message: bytes) -> None:
    target.write(LENGTH.pack(len(message)))
    target.write(message)
    target.flush()


def _watch(changes: socket.socket) -> None:
    """This process ends with the server, even while the plug-in hangs."""
    poll = select.poll()
    poll.register(changes, select.POLLHUP)
    while not any(events & (select.POLLHUP | select.POLLERR | select.POLLNVAL) for _, events in poll.poll()):
        pass
    time.sleep(_END_S_MAX)
    os._exit(1)
