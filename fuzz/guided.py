"""Coverage-guided runs of targets that take bytes, by atheris (the extra `fuzz`), where it installs.

Atheris leaves the process when it is done or has found something; so what it finds is written as a corpus file at once.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import sys
import types

from fuzz import corpus_file
from fuzz.runner import first_line
from fuzz.target import Target

_SECONDS_DEFAULT = 60.0
_PRODUCT = frozenset(
    {"tpy", "tpy_backends", "tpy_cloud", "tpy_control", "tpy_data", "tpy_native", "tpy_page", "tpy_platforms", "tpy_tools"}
)


def _functions_of_the_product() -> list[types.FunctionType]:
    """All that are loaded."""
    return [
        each
        for each in gc.get_objects()
        if isinstance(each, types.FunctionType) and (each.__module__ or "").partition(".")[0] in _PRODUCT
    ]


def run_guided(target: Target, *, seconds: float | None) -> int:
    """Run until something is found or the time is over; the exit status, where atheris returns at all."""
    if target.attack is None:
        print(f"python -m fuzz: {target.name} takes no bytes", file=sys.stderr)
        return 2
    try:
        atheris = importlib.import_module("atheris")
    except ImportError:
        print("python -m fuzz: --atheris needs atheris: pip install -e '.[fuzz]'", file=sys.stderr)
        return 2
    attack = target.attack

    def try_bytes(data: bytes) -> None:
        try:
            attack(data)
        except Exception as error:
            entry = corpus_file.Entry(target=target.name, found=first_line(error), data=data)
            path = corpus_file.write(entry, f"bytes_{hashlib.sha256(data).hexdigest()[:12]}")
            print(f"replay: python -m fuzz --replay {corpus_file.shown(path)}", flush=True)
            raise

    for function in _functions_of_the_product():  # all that is loaded would take minutes
        atheris.instrument_func(function)
    limit = _SECONDS_DEFAULT if seconds is None else seconds
    atheris.Setup([sys.argv[0], f"-max_total_time={int(limit)}", "-timeout=10", "-max_len=4096"], try_bytes)
    atheris.Fuzz()
    return 0
