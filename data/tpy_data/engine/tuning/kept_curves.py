"""KeptCurves: the file of --batching-curves-file, with the cost curves of models whose batches are tuned."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from tpy.errors import TpyError, Unavailable
from tpy.files import format_of, read_file, replace_file
from tpy.limits.tuning import CURVES_CHANGED_SHARE, CURVES_FILE_BYTES_MAX, CURVES_KEPT_MAX
from tpy.messages import CurvePoint
from tpy.state import DesiredModel, DesiredVersion
from tpy_data.engine.budget.fingerprint import files_of
from tpy_data.schedulers.core.contract import SchedulerCore
from tpy_data.schedulers.core.tuned_cores import TunedDynamicCore, TunedFairCore

_log = logging.getLogger(__name__)

FORMAT: Final = 1
"""Of the file. One of another number is not used."""


class KeptCurve(msgspec.Struct, frozen=True):
    """A model's line in the file: its curve when it was unloaded, with files of this fingerprint."""

    fingerprint: str
    points: tuple[CurvePoint, ...]


class CurvesFile(msgspec.Struct, frozen=True):
    """The file: models by name and version."""

    format: int
    models: Mapping[str, KeptCurve] = {}


_DECODER: Final = msgspec.json.Decoder(CurvesFile)


class OpenCurve:
    """The curve of a version that is loaded: `points` are the ones that it begins with."""

    __slots__ = ("_curves", "_fingerprint", "_name", "points")

    def __init__(self, curves: KeptCurves, name: str, fingerprint: str, points: tuple[CurvePoint, ...]) -> None:
        self._curves = curves
        self._name = name
        self._fingerprint = fingerprint
        self.points = points

    def keep(self, core: SchedulerCore) -> None:
        """Keep what the core knows now. Blocking."""
        if isinstance(core, TunedDynamicCore | TunedFairCore) and (points := core.tuner.curve.points()):
            self._curves.keep(self._name, KeptCurve(self._fingerprint, points))


class KeptCurves:
    """Of all versions. Its methods block, and may run in several threads at a time."""

    def __init__(self, file: Path) -> None:
        """A file that cannot be used is warned of: curves are learned anew, and the file is written over."""
        self._file = file
        self._lock = threading.Lock()
        self._writing = threading.Lock()  # taken before the other one: who writes the file has the latest curves
        self._kept = dict(_read(file))
        self._unwritten = 0  # changes since the file was written
        self._is_closed = False

    def open(self, model: DesiredModel, version: DesiredVersion) -> OpenCurve | None:
        """The curve of a version that is about to be loaded; None, with a warning, if its files cannot be read."""
        name = f"{model.id}:{version.version}"
        try:
            fingerprint = files_of(model, version).fingerprint
        except Unavailable as error:
            about = {"model": name, "reason": error.message}
            _log.warning("the batching curve of '%(model)s' is learned anew, and not kept: %(reason)s", about)
            return None
        with self._lock:
            known = self._kept.get(name)
        is_same = known is not None and known.fingerprint == fingerprint
        return OpenCurve(self, name, fingerprint, known.points if known is not None and is_same else ())

    def keep(self, name: str, curve: KeptCurve) -> None:
        """Keep the curve of a version that is unloaded, and forget the ones that were kept longest ago beyond CURVES_KEPT_MAX. It
        is written with others, once enough of them have changed: the file is written as a whole."""
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = curve
            for oldest in list(self._kept)[:-CURVES_KEPT_MAX]:
                del self._kept[oldest]
            self._unwritten += 1
            is_due = self._is_closed or self._unwritten * CURVES_CHANGED_SHARE >= len(self._kept)
        if is_due:
            self._write()

    def close(self) -> None:
        """Write what is not written yet; from now on every curve is written at once."""
        with self._lock:
            self._is_closed = True
        self._write()

    def _write(self) -> None:
        """Write the file if anything has changed since. What could not be written is tried again with the next change."""
        with self._writing:
            with self._lock:  # not while the disk works
                count = self._unwritten
                kept = dict(self._kept)
            if not count:
                return
            try:
                replace_file(self._file, msgspec.json.encode(CurvesFile(FORMAT, kept)))
            except OSError as error:
                about = {"file": str(self._file), "reason": str(error)}
                _log.error("--batching-curves-file %(file)s cannot be written: %(reason)s", about)
                return
            with self._lock:
                self._unwritten -= count


def _read(file: Path) -> Mapping[str, KeptCurve]:
    try:
        content = read_file(file, bytes_max=CURVES_FILE_BYTES_MAX)
        found = format_of(content)
        if found == FORMAT:
            return _DECODER.decode(content).models
    except FileNotFoundError:
        return {}
    except (OSError, TpyError, RecursionError, UnicodeDecodeError, msgspec.MsgspecError) as error:
        about = {"file": str(file), "reason": str(error)}
        _log.warning("--batching-curves-file %(file)s is not used: %(reason)s; curves are learned anew", about)
        return {}
    about = {"file": str(file), "found": str(found), "format": str(FORMAT)}
    _log.warning("--batching-curves-file %(file)s has format %(found)s, expected %(format)s: curves are learned anew", about)
    return {}
