"""A disk that is full."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException

from tests.backends import onnx_models
from tests.e2e.server import ServerProcess

from .load import loading
from .models import write_models
from .skipped import Skipped

_SIZE_KIB = 512
_CONFIG = '{"backend": "onnxruntime"}'


def full(folder: Path) -> str:
    """The temporary directory and the log file are on a small file system of the server's own, which is filled."""
    small = folder / "small"
    small.mkdir()
    write_models(folder / "models")
    flags = ("--model-control-mode=explicit", "--load-model=*", f"--log-file={small / 'log'}", "--log-verbose=1")
    files = {"file:1/model.onnx": onnx_models.affine(9, 0), "file:1/more": bytes(64 * 1024)}
    with ServerProcess(
        *flags, repositories=[folder / "models"], environment={"TMPDIR": str(small)}, launcher=mounted(small, _SIZE_KIB)
    ) as server:
        inside = Path(f"/proc/{server.process.pid}/root{small}")
        with loading(server) as load, InferenceServerClient(server.http) as client:
            client.load_model("extra", config=_CONFIG, files=files)
            filled = _fill(inside)
            with pytest.raises(InferenceServerException, match="No space left on device") as caught:
                client.load_model("another", config=_CONFIG, files=files)
            refusal = caught.value.message()
            assert not client.is_model_ready("another")
            assert client.is_model_ready("extra")
            client.unload_model("copy")
            client.load_model("copy")
            load.ledger.wait_answered(200)
            load.ledger.wait_answered(20, "affine", "copy", "sum", "count")
            (inside / "filler").unlink()
            client.load_model("another", config=_CONFIG, files=files)
            assert client.is_model_ready("another")
            load.ledger.wait_answered(50)
        load.ledger.check(
            refused="unloaded|no available versions|not at ready state|unknown model", refused_models=("copy", "chain")
        )
    return f"{filled // 1024} KiB filled, 1 load refused ({refusal}): {load.ledger}"


def _fill(directory: Path) -> int:
    written = 0
    with open(directory / "filler", "wb", buffering=0) as filler:
        for size in (65_536, 4096, 1):
            try:
                while True:
                    written += filler.write(bytes(size))
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
    return written


def mounted(directory: Path, size_kib: int) -> tuple[str, ...]:
    """A launcher that gives its command a tmpfs in place of this directory, which nobody else sees."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise Skipped("only root may mount a small tmpfs")
    mount = f"mount -t tmpfs -o size={size_kib}k tmpfs {directory} && "
    if subprocess.run(["unshare", "-m", "sh", "-c", mount + "true"], capture_output=True, check=False).returncode:
        raise Skipped("no tmpfs can be mounted here")
    return ("unshare", "-m", "sh", "-c", mount + 'exec "$@"', "sh")
