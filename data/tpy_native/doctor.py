"""The line of `tpy doctor` about compiled plug-ins."""

from __future__ import annotations

from collections.abc import Iterator

from tpy.doctor import DoctorFinding, Verdict
from tpy.errors import Unavailable
from tpy_native.building import built_folder, compiler


def plug_ins() -> Iterator[DoctorFinding]:
    """Backends, caches, agents and batching strategies that were compiled for Triton need a library of ours."""
    subject = "compiled plug-ins"
    folder = built_folder()
    if folder is not None:
        yield DoctorFinding(subject, Verdict.OK, f"their library is in {folder}")
        return
    try:
        yield DoctorFinding(subject, Verdict.OK, f"their library is built at the first use, with {compiler()}")
    except Unavailable:
        advice = "for compiled backends, caches and agents: apt-get install gcc libc6-dev, or a wheel that has it (make wheel)"
        yield DoctorFinding(subject, Verdict.OK, "no C compiler, and their library is not built", advice)
