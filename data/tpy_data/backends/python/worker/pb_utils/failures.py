"""Errors of model code: what pb_utils offers to raise and return, and how an exception becomes text."""

from __future__ import annotations

import enum
import os
import types

from .arguments import text_argument

_NOT_THE_MODELS = (
    os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep,
    os.path.join(os.path.dirname(os.__file__), "asyncio") + os.sep,
)
"""Folders whose frames say nothing about the model: the worker's, and the loop under an async execute."""


LINES_MAX = 16
"""Calls in the text of an exception."""


def is_the_models(path: str) -> bool:
    """Returns True if code of this file is the model's, or of something that it uses."""
    return not path.startswith(_NOT_THE_MODELS)


class TritonModelException(Exception):
    """For model code to raise."""


class ErrorCode(enum.IntEnum):
    """TRITONSERVER_Error_Code."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __str__(self) -> str:
        return f"__ErrorCode.{self.name}"  # as Triton's models write it into logs and texts

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class TritonError:
    """The error of one response. Not an exception: put it into an InferenceResponse."""

    UNKNOWN = ErrorCode.UNKNOWN
    INTERNAL = ErrorCode.INTERNAL
    NOT_FOUND = ErrorCode.NOT_FOUND
    INVALID_ARG = ErrorCode.INVALID_ARG
    UNAVAILABLE = ErrorCode.UNAVAILABLE
    UNSUPPORTED = ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = ErrorCode.ALREADY_EXISTS
    CANCELLED = ErrorCode.CANCELLED

    __slots__ = ("_code", "_message")

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        message = text_argument("TritonError", "message", message, "replace")
        if not isinstance(code, ErrorCode):
            raise TypeError(f"TritonError: code must be one of TritonError's codes, got {code!r}")
        self._message = message
        self._code = code

    def message(self) -> str:
        """The text for the client."""
        return self._message

    def code(self) -> ErrorCode:
        """Decides the status that the client sees."""
        return self._code


class ModelFailure(Exception):
    """A failure of model code, as text for the caller."""

    def __init__(self, text: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        super().__init__(text)
        self.code = code


def text_of(error: BaseException) -> str:
    """The message of an exception, also when making it fails."""
    try:
        return str(error)
    except Exception:
        return "<its text cannot be read>"


def unsendable(error: Exception) -> str:
    """The error of a response whose outputs cannot be sent, such as text that is not Unicode."""
    return f"the outputs of the response cannot be sent: {type(error).__name__}: {text_of(error)}"


def describe(error: BaseException, boundary: types.FrameType | None) -> str:
    """Type, text and call stack of an exception, innermost call first, as Triton's clients know it.

    `boundary` is the frame that caught it: it and its callers are left out, and so is what lies between them and the model.
    """
    text = text_of(error) or "<EMPTY MESSAGE>"
    lines: list[str] = []
    files: list[str] = []
    trace = error.__traceback__
    if trace is not None:
        while trace.tb_next is not None:
            trace = trace.tb_next
        frame: types.FrameType | None = trace.tb_frame
        while frame is not None and frame is not boundary:
            code = frame.f_code
            if is_the_models(code.co_filename):
                lines.append(f"  {code.co_filename}({frame.f_lineno}): {code.co_name}\n")
                files.append(code.co_filename)
            frame = frame.f_back
    if len(lines) > LINES_MAX:
        # What reads this may cut it, and the outermost file is the model's: its line comes first then.
        own = lines[files.index(files[-1])]
        more = f"  ... and {len(lines) - LINES_MAX} more calls\n"
        lines = [own, *[line for line in lines[:LINES_MAX] if line != own], more]
    where = "\n\nAt:\n" + "".join(lines) if lines else ""
    return f"{type(error).__name__}: {text}{where}"
