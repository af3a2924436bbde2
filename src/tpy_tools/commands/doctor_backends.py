"""`tpy doctor`: what each backend needs, the checks of packages, and room on disks."""

from __future__ import annotations

import importlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from tpy.doctor import GROUP, DoctorFinding, Verdict
from tpy.errors import Unavailable
from tpy.limits import DOCTOR_DISK_BYTES_MIN
from tpy.plugins import LIBRARIES, installed, load, named, package_of
from tpy.units import MIB
from tpy_data.backends.creation import Needs
from tpy_data.registry import ENTRY_POINT_GROUP


def backends() -> Iterator[DoctorFinding]:
    """A line for each backend. A missing framework is not a warning: few servers need them all."""
    for entry_point in installed(ENTRY_POINT_GROUP):
        if entry_point.name != LIBRARIES:  # what runs compiled backends is the backend of no model
            yield _backend(entry_point)


def _backend(entry_point: metadata.EntryPoint) -> DoctorFinding:
    subject = f"backend {entry_point.name}"
    try:
        needs = getattr(importlib.import_module(entry_point.module), "NEEDS", None)
    except Exception as error:  # code of others
        advice = f"install what its package needs: {_origin(entry_point)}"
        return DoctorFinding(subject, Verdict.WARNING, f"cannot be imported ({type(error).__name__}: {error})", advice)
    if not isinstance(needs, Needs):
        own = entry_point.value.startswith(("tpy_backends.", "tpy_data."))
        return DoctorFinding(subject, Verdict.OK, "needs nothing more" if own else f"comes from {_origin(entry_point)}")
    found = [f"{name} {version}" for name in needs.distributions if (version := version_of(name))]
    if found:
        return DoctorFinding(subject, Verdict.OK, f"{needs.framework}: {', '.join(found)}")
    return DoctorFinding(subject, Verdict.OK, f"{needs.framework} is not installed", f"for its models: {needs.install}")


def _origin(entry_point: metadata.EntryPoint) -> str:
    return package_of(entry_point) or entry_point.value


def version_of(name: str) -> str:
    """The version of an installed distribution, "" for one that is not."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def checks() -> Iterator[DoctorFinding]:
    """The lines of the checks that packages have. One that does not work is a line itself."""
    for name in dict.fromkeys(each.name for each in installed(GROUP)):
        try:
            for finding in load(GROUP, name, "check of tpy doctor")():
                if not isinstance(finding, DoctorFinding):
                    raise TypeError(f"expected a DoctorFinding, got {type(finding).__name__}")
                yield finding
        except Unavailable as error:
            yield DoctorFinding(f"check {name}", Verdict.WARNING, error.message)
        except (Exception, SystemExit) as error:  # of a package that may not be ours
            [entry_point] = named(GROUP, name)
            advice = f"repair or remove the package {_origin(entry_point)}"
            yield DoctorFinding(f"check {name}", Verdict.WARNING, f"{type(error).__name__}: {error}", advice)


def disks() -> Iterator[DoctorFinding]:
    """Room for temporary files and caches: models from the cloud, uploaded files, environments, what is compiled once."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    seen: set[int] = set()
    for path in (Path(tempfile.gettempdir()), cache):
        there = next((each for each in (path, *path.parents) if each.exists()), None)
        if there is None or (device := there.stat().st_dev) in seen:
            continue
        seen.add(device)
        subject = f"disk of {path}"
        usage = shutil.disk_usage(there)
        text = f"{usage.free // MIB} of {usage.total // MIB} MiB free"
        if usage.free < DOCTOR_DISK_BYTES_MIN:
            advice = "models from the cloud, packed environments and uploaded files are put there: free some, or set TMPDIR"
            yield DoctorFinding(subject, Verdict.WARNING, text, advice)
        elif not os.access(there, os.W_OK):
            yield DoctorFinding(
                subject, Verdict.WARNING, "this user may not write there", "mount a writable folder, or set TMPDIR"
            )
        else:
            yield DoctorFinding(subject, Verdict.OK, text)
