"""Triton's exceptions, and those of the server as such."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tpy.errors import ErrorCode, TpyError


class TritonError(Exception):
    """Base of the errors of this module. Behind the text, `args` may have the response that it came with."""


class NotFoundError(TritonError):
    """Names something that does not exist."""


class UnknownError(TritonError):
    """A model said so."""


class InternalError(TritonError):
    """A bug, or a failing model."""


class InvalidArgumentError(TritonError):
    """Malformed, or in contradiction with the configuration."""


class UnavailableError(TritonError):
    """Not ready, queue full, time-out, shutting down."""


class AlreadyExistsError(TritonError):
    """Creates something that exists."""


class UnsupportedError(TritonError):
    """Understood, but not offered."""


class CancelledError(TritonError):
    """The request was cancelled."""


_BY_CODE: dict[ErrorCode, type[TritonError]] = {
    ErrorCode.UNKNOWN: UnknownError,
    ErrorCode.INTERNAL: InternalError,
    ErrorCode.NOT_FOUND: NotFoundError,
    ErrorCode.INVALID_ARG: InvalidArgumentError,
    ErrorCode.UNAVAILABLE: UnavailableError,
    ErrorCode.UNSUPPORTED: UnsupportedError,
    ErrorCode.ALREADY_EXISTS: AlreadyExistsError,
    ErrorCode.CANCELLED: CancelledError,
    ErrorCode.FORBIDDEN: UnavailableError,
    ErrorCode.UNAUTHENTICATED: UnavailableError,
    ErrorCode.PERMISSION_DENIED: UnavailableError,
    ErrorCode.RESOURCE_EXHAUSTED: UnavailableError,
}

for _error in (TritonError, *_BY_CODE.values()):
    _error.__module__ = "tritonserver"  # as programs and their logs know them


def from_tpy(error: TpyError) -> TritonError:
    """Triton's exception for this error."""
    return _BY_CODE[error.code](error.message)


@contextmanager
def as_triton() -> Iterator[None]:
    """A block whose errors are Triton's."""
    try:
        yield
    except TpyError as error:
        raise from_tpy(error) from None
