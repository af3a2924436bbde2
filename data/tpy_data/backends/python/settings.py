"""`--backend-config=python,<key>=<value>`: Triton's keys, and ours."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tpy.errors import InvalidArgument
from tpy.units import MIB

START_TIMEOUT_S_DEFAULT = 30
"""stub-timeout-seconds: from starting the interpreter to its first word. Triton's default."""

INITIALIZE_TIMEOUT_S_DEFAULT = 600
"""initialize-timeout-seconds: large models take minutes to load, and a hanging one must end with a reason some day."""

FINALIZE_TIMEOUT_S_DEFAULT = 30
"""finalize-timeout-seconds: after it the worker is ended."""

_START = "stub-timeout-seconds"
_INITIALIZE = "initialize-timeout-seconds"
_FINALIZE = "finalize-timeout-seconds"

_WITHOUT_MEANING = {
    "shm-default-byte-size": (MIB, "can't be smaller than 4 MiBs"),
    "shm-growth-byte-size": (1, "can't be smaller than or equal to zero."),
    "shm-region-prefix-name": None,
    "shm_message_queue_size": (1, "expected a whole number above 0"),
    "thread-pool-size": (1, "can't be less than 1."),
}
"""Triton's keys for what does not exist here: shared memory has no names and grows by itself, there is no pool. Each with the
smallest number that it may be (None: it is a text), and Triton's words for a smaller one: what Triton refuses is refused."""


class PythonSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits in seconds. `ignored` are the keys that were given and have no meaning here."""

    start_timeout_s: float = START_TIMEOUT_S_DEFAULT
    initialize_timeout_s: float = INITIALIZE_TIMEOUT_S_DEFAULT
    finalize_timeout_s: float = FINALIZE_TIMEOUT_S_DEFAULT
    ignored: tuple[str, ...] = ()


def read_settings(config: Mapping[str, str]) -> PythonSettings:
    """Raises InvalidArgument for a timeout that is not a number above zero, and for a number that Triton would not take.

    An explicit stub-timeout-seconds bounds `initialize` as well, unless initialize-timeout-seconds is given too.
    """
    for key in _WITHOUT_MEANING:
        _check(config, key)
    start_s = _seconds(config, _START, START_TIMEOUT_S_DEFAULT)
    initialize_default_s = start_s if _START in config else INITIALIZE_TIMEOUT_S_DEFAULT
    return PythonSettings(
        start_timeout_s=start_s,
        initialize_timeout_s=_seconds(config, _INITIALIZE, initialize_default_s),
        finalize_timeout_s=_seconds(config, _FINALIZE, FINALIZE_TIMEOUT_S_DEFAULT),
        ignored=tuple(key for key in _WITHOUT_MEANING if key in config),
    )


def _check(config: Mapping[str, str], key: str) -> None:
    text, bound = config.get(key), _WITHOUT_MEANING[key]
    if text is None:
        return
    if bound is None:
        if not text:
            raise InvalidArgument(f"--backend-config=python,{key}=: {key} must be at least one character long")
        return
    least, words = bound
    try:
        number = int(text)
    except ValueError:
        raise InvalidArgument(f"--backend-config=python,{key}={text}: expected a whole number") from None
    if number < least:
        raise InvalidArgument(f"--backend-config=python,{key}={text}: {key} {words}")


def _seconds(config: Mapping[str, str], key: str, default: float) -> float:
    text = config.get(key)
    if text is None:
        return default
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise InvalidArgument(f"--backend-config=python,{key}={text}: expected a number of seconds above 0")
    return seconds
