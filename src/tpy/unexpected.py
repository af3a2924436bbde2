"""The error that a caller gets for an exception that nobody expected."""

from __future__ import annotations

import errno
import logging
import sys

from tpy.errors import Internal, TpyError, Unavailable

_log = logging.getLogger(__name__)

_TEXT = "unexpected error in the server, its log has the details"
_NO_MEMORY = "the server has no memory for this request"
_NO_THREAD = "can't start new thread"


def is_out_of_memory(error: BaseException | None) -> bool:
    """Returns True for what Python, numpy and the system raise when memory, or the address space, is used up."""
    match error:
        case MemoryError():
            return True
        case BaseExceptionGroup():
            return all(is_out_of_memory(each) for each in error.exceptions)
        case OSError():
            return error.errno == errno.ENOMEM
        case RuntimeError():  # a thread needs memory for its stack
            return str(error) == _NO_THREAD
        case _:
            return False


def unexpected_error(what: str, *, text: str = _TEXT, **context: str) -> TpyError:
    """The error that stands for the exception being handled. Memory that is used up is a line in the log, and passes; anything
    else is a bug of ours, and has its traceback in the log, after `what`."""
    if is_out_of_memory(sys.exception()):
        _log.error("%s: no memory", what, extra={"context": context})
        return Unavailable(_NO_MEMORY)
    _log.exception(what, extra={"context": context})
    return Internal(text)
