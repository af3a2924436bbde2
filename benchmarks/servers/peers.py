"""Finds the servers and load generators that tpy is compared with on this machine.

They are optional. Under $TPY_PEERS (default: ~/.cache/tpy-peers) are looked for:

    tritonserver/bin/tritonserver   the real Triton, with tritonserver/backends/python
    triton/                         the virtual environment that its python backend runs in (Triton 2.51 needs numpy<2)
    mlserver/bin/mlserver           MLServer, in a virtual environment
    perf_analyzer                   Triton's load generator
    client/                         a virtual environment with nvidia-cuda-runtime-cu12, which perf_analyzer is linked with

and on the PATH: wrk.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import msgspec

_DEFAULT_FOLDER = "~/.cache/tpy-peers"
_VERSION_S_MAX = 20


class Triton(msgspec.Struct, frozen=True):
    """The server's folder (bin/, backends/) and the environment of its python backend."""

    folder: Path
    environment: Path

    def library_path(self) -> str:
        """The folder in which its python stub finds libpython."""
        code = "import sysconfig; print(sysconfig.get_config_var('LIBDIR'))"
        return output_of([str(self.environment / "bin" / "python"), "-c", code])


class PerfAnalyzer(msgspec.Struct, frozen=True):
    """The binary and the folder of the CUDA runtime that it is linked with."""

    binary: Path
    library_path: Path


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """The peers that were found; None for others."""

    triton: Triton | None
    mlserver: Path | None
    perf_analyzer: PerfAnalyzer | None
    wrk: Path | None

    def missing(self) -> tuple[str, ...]:
        """One sentence for each thing that was not found: what it is, and how to get it."""
        folder = peers_folder()
        sentences = []
        if self.wrk is None:
            sentences.append("wrk is not on the PATH, so the HTTP rows have no load generator: apt-get install wrk")
        if self.triton is None:
            sentences.append(
                f"Triton is not in {folder}: put a tritonserver (bin/, backends/) at {folder / 'tritonserver'} and the Python "
                f"environment of its python backend at {folder / 'triton'}; TPY_PEERS names another folder"
            )
        if self.mlserver is None:
            sentences.append(
                f"MLServer is not in {folder}: python3 -m venv {folder / 'mlserver'}, then pip install mlserver there"
            )
        if self.perf_analyzer is None:
            sentences.append(
                f"perf_analyzer is not in {folder}: tritonclient wheels up to 2.51 ship the binary; libcudart.so.12 is looked "
                f"for in {folder / 'client'} (pip install nvidia-cuda-runtime-cu12); libb64 too (apt-get install libb64-0d)"
            )
        return tuple(sentences)


def peers_folder() -> Path:
    """$TPY_PEERS or its default."""
    return Path(os.environ.get("TPY_PEERS") or _DEFAULT_FOLDER).expanduser()


def find_peers() -> Peers:
    """Look for everything."""
    folder = peers_folder()
    server, environment = folder / "tritonserver", folder / "triton"
    has_triton = (server / "bin" / "tritonserver").exists() and (environment / "bin" / "python").exists()
    mlserver = folder / "mlserver" / "bin" / "mlserver"
    wrk = shutil.which("wrk")
    return Peers(
        triton=Triton(server, environment) if has_triton else None,
        mlserver=mlserver if mlserver.exists() else None,
        perf_analyzer=_find_perf_analyzer(folder),
        wrk=None if wrk is None else Path(wrk),
    )


def _find_perf_analyzer(folder: Path) -> PerfAnalyzer | None:
    binary = folder / "perf_analyzer"
    library = next((folder / "client").glob("lib/python*/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12"), None)
    if library is None or not os.access(binary, os.X_OK):
        return None
    return PerfAnalyzer(binary, library.parent)


def output_of(command: list[str]) -> str:
    """The output of a short command, stripped; its first error stops the program."""
    finished = subprocess.run(command, capture_output=True, text=True, timeout=_VERSION_S_MAX, check=True)
    return finished.stdout.strip()
