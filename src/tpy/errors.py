"""The error taxonomy. One table for the whole server; frontends map codes to statuses with one table each.

    TpyError                      anything the server says "no" with; has a code and one sentence for the caller
    +-- CallerError               your fault: the request cannot be served as it stands
    |   +-- InvalidArgument       INVALID_ARG      malformed, contradicts the model's configuration
    |   +-- NotFound              NOT_FOUND        unknown model, version, region
    |   +-- AlreadyExists         ALREADY_EXISTS
    |   +-- Unsupported           UNSUPPORTED      understood, but not offered here
    |   +-- Forbidden             FORBIDDEN        restricted API without its key
    |   +-- Unauthenticated       UNAUTHENTICATED  no credential, or one that is not good
    |   +-- PermissionDenied      PERMISSION_DENIED  a good credential without the role
    +-- Refusal                   our decision: the request was fine, the moment was not
    |   +-- Unavailable           UNAVAILABLE      not ready, queue full, time-out, shutting down
    |   +-- TooManyRequests       RESOURCE_EXHAUSTED  beyond the rate or the concurrency of a key
    |   +-- Cancelled             CANCELLED        the caller went away or asked to stop
    +-- Fault                     a bug or a failing model
        +-- Internal              INTERNAL         includes exceptions raised by model code
        +-- Unknown               UNKNOWN          only ever from model code that says so

Codes are Triton's internal error codes (TRITONSERVER_Error_Code), plus FORBIDDEN for its restricted APIs
and those of --auth-config.
Messages are what clients read: Triton's own text where Triton has one.
"""

from __future__ import annotations

import enum
from typing import ClassVar, Final

from tpy.echo import echo
from tpy.limits import ERROR_CHARACTERS_MAX


class ErrorCode(enum.Enum):
    """The kind of an error; the value is the word Triton prints in front of reasons ("Invalid argument: ...")."""

    UNKNOWN = "Unknown"
    INTERNAL = "Internal"
    NOT_FOUND = "Not found"
    INVALID_ARG = "Invalid argument"
    UNAVAILABLE = "Unavailable"
    UNSUPPORTED = "Unsupported"
    ALREADY_EXISTS = "Already exists"
    CANCELLED = "Cancelled"
    FORBIDDEN = "Forbidden"
    UNAUTHENTICATED = "Unauthenticated"
    PERMISSION_DENIED = "Permission denied"
    RESOURCE_EXHAUSTED = "Resource exhausted"


class TpyError(Exception):
    """Base of every error that a caller may see. `str(error)` is the sentence for the caller, without the code."""

    code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN

    wait_s: int | None = None
    """Seconds after which the same request may be answered; None where nobody knows."""

    def __init__(self, message: str) -> None:
        message = echo(message, ERROR_CHARACTERS_MAX)
        if not message.isascii():
            # Half a surrogate pair, which model code and file names may hold, has no form in any answer.
            message = message.encode("utf-8", "backslashreplace").decode()
        super().__init__(message)
        self.message = message

    def reason(self) -> str:
        """The text for a repository index or a log: `<Code>: <message>`, as Triton writes it."""
        return f"{self.code.value}: {self.message}"


class CallerError(TpyError):
    """The request cannot be served as it stands."""


class InvalidArgument(CallerError):
    """Malformed, or in contradiction with the model's configuration."""

    code = ErrorCode.INVALID_ARG


class AmbiguousName(InvalidArgument):
    """Under model namespacing: several namespaces have a model of this name, and no request says which one it means."""

    def __init__(self, name: str, count: int) -> None:
        super().__init__(
            f"There are {count} identifiers of model '{echo(name)}' in global map, model namespace must be provided to resolve "
            "ambiguity."
        )


class NotFound(CallerError):
    """Names something that does not exist."""

    code = ErrorCode.NOT_FOUND


class AlreadyExists(CallerError):
    """Creates something that exists."""

    code = ErrorCode.ALREADY_EXISTS


class Unsupported(CallerError):
    """Understood, but not offered by this server or model."""

    code = ErrorCode.UNSUPPORTED


class Forbidden(CallerError):
    """A restricted API was called without its key."""

    code = ErrorCode.FORBIDDEN


class Unauthenticated(CallerError):
    """No credential where one is needed, or one that is not good."""

    code = ErrorCode.UNAUTHENTICATED


class PermissionDenied(CallerError):
    """A good credential, without the role for the call."""

    code = ErrorCode.PERMISSION_DENIED


class Refusal(TpyError):
    """The request was fine, the moment was not."""


class Unavailable(Refusal):
    """Not ready, queue full, time-out, shutting down."""

    code = ErrorCode.UNAVAILABLE


class QueueFull(Unavailable):
    """The queue of the model has no room, or its table of live sequences."""


class ServerNotReady(Unavailable):
    """A request about models to a server that has no models and never will."""

    def __init__(self) -> None:
        super().__init__("Server not ready")


class TooManyRequests(Refusal):
    """Beyond the rate or the concurrency of a key."""

    code = ErrorCode.RESOURCE_EXHAUSTED

    def __init__(self, message: str, *, wait_s: int = 1) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Cancelled(Refusal):
    """The caller went away or asked to stop."""

    code = ErrorCode.CANCELLED


class Fault(TpyError):
    """A bug of ours, or a model that failed. `is_logged`: whoever raised it has put it into the log."""

    is_logged = False


class Internal(Fault):
    """An exception in model code or in the server."""

    code = ErrorCode.INTERNAL


class Unknown(Fault):
    """Only ever said by model code."""

    code = ErrorCode.UNKNOWN


ERROR_OF_CODE: dict[ErrorCode, type[TpyError]] = {
    kind.code: kind
    for kind in (
        InvalidArgument,
        NotFound,
        AlreadyExists,
        Unsupported,
        Forbidden,
        Unauthenticated,
        PermissionDenied,
        TooManyRequests,
        Unavailable,
        Cancelled,
        Internal,
        Unknown,
    )
}
"""The class that carries each code; total over ErrorCode."""

TRITON_ERROR_CODES: Final = (
    ErrorCode.UNKNOWN,
    ErrorCode.INTERNAL,
    ErrorCode.NOT_FOUND,
    ErrorCode.INVALID_ARG,
    ErrorCode.UNAVAILABLE,
    ErrorCode.UNSUPPORTED,
    ErrorCode.ALREADY_EXISTS,
    ErrorCode.CANCELLED,
)
"""In the order of TRITONSERVER_Error_Code: the numbers by which model code and plug-ins name them."""


class InvariantViolation(Exception):
    """A statement about the server's own state that must hold did not. Stops the smallest owner that can be restarted."""


def invariant(condition: object, message: str) -> None:
    """Raise InvariantViolation unless `condition` holds. Stays on in production (`assert` vanishes under -O)."""
    if not condition:
        raise InvariantViolation(message)
