"""The process of a repository agent, as the server sees it."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Mapping, Sequence

import anyio
import anyio.abc
import msgspec

from tpy.errors import Internal, Unavailable
from tpy.limits import AGENT_REPLY_BYTES_MAX
from tpy.process_output import OutputForwarder, forwarded, log_of_plugin

_log = logging.getLogger(__name__)

_END_S_MAX = 5


class _Reply(msgspec.Struct, frozen=True, kw_only=True):
    error: str = ""
    location: str = ""


_decode_reply = msgspec.json.Decoder(_Reply).decode


class AgentProcess:
    """Started with the first call, and again with the first one after it has died. One call at a time."""

    def __init__(self, name: str, command: Sequence[str], timeout_s: float) -> None:
        self._name = name
        self._command = command
        self._timeout_s = timeout_s
        self._turn = anyio.Lock()
        self._process: anyio.abc.Process | None = None
        self._output: OutputForwarder | None = None
        self._received = b""
        self.incarnation = 0
        """Grows with each start: what an earlier one knew of models is gone."""

    async def call(self, message: Mapping[str, object], *, incarnation: int | None = None) -> str:
        """Ask for one thing. Returns the location of the model. With `incarnation`, only of this one.

        Raises Internal for an error of the agent, and for one that dies or does not end in time, whose process is then ended;
        Unavailable if the incarnation is not there any more.
        """
        async with self._turn:
            if incarnation is not None and (self._process is None or incarnation != self.incarnation):
                raise Unavailable(f"repository agent '{self._name}' was restarted meanwhile")
            try:
                reply = await self._exchange(msgspec.json.encode(message) + b"\n")
            except BaseException:
                await self._kill()
                raise
        if reply.error:
            raise Internal(f"{reply.error} (repository agent '{self._name}')")  # Triton's log has the agent's text alone
        return reply.location

    async def end(self) -> None:
        """Let the agent end, for a moment."""
        if self._process is not None and self._process.stdin is not None:
            with anyio.move_on_after(_END_S_MAX), contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._process.stdin.send(b"\n")
                await self._process.wait()
        await self._kill()

    async def _exchange(self, line: bytes) -> _Reply:
        if self._process is None:
            try:
                with forwarded(self._name, log_of_plugin(f"repository agent '{self._name}'", _log)) as (output, _, stderr):
                    # Ctrl-C in the terminal goes to the server, which ends it in order; what it does to its group is its affair.
                    self._process = await anyio.open_process([*self._command], stderr=stderr, start_new_session=True)
                self._output = output
            except (OSError, RuntimeError) as error:
                raise Internal(f"repository agent '{self._name}' cannot be started: {error}") from error
            self.incarnation += 1
            self._received = b""
        with anyio.move_on_after(self._timeout_s):
            return await self._send_and_receive(self._process, line)
        raise Internal(f"repository agent '{self._name}' did not end within {self._timeout_s:g} s")

    async def _send_and_receive(self, process: anyio.abc.Process, line: bytes) -> _Reply:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            await process.stdin.send(line)
            while b"\n" not in self._received:
                if len(self._received) > AGENT_REPLY_BYTES_MAX:
                    raise Internal(f"repository agent '{self._name}' sent an answer without end")
                self._received += await process.stdout.receive()
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError):
            code = await process.wait()
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            raise Internal(f"the process of repository agent '{self._name}' {how}") from None
        reply, _, self._received = self._received.partition(b"\n")
        return _decode_reply(reply)

    async def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with anyio.move_on_after(_END_S_MAX, shield=True):
            # What it has started, too. A number is not given again while its group lives, nor in the moment after its end.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                process.kill()  # it may have left the group
            await process.wait()
            await process.aclose()
        if self._output is not None:
            await anyio.to_thread.run_sync(self._output.close)
