"""Finds a model's pipeline, and serializes it where it is a Python file."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

from tpy.backend import ModelContext
from tpy.errors import Internal, TpyError
from tpy.limits import DALI_SERIALIZE_S_MAX
from tpy_backends.contents import contents_of
from tpy_backends.dali import serializing
from tpy_backends.dali.library import is_pipeline
from tpy_backends.file_backend import model_file, read_whole

DEFAULT_FILENAME: Final = "model.dali"
PYTHON_FILENAME: Final = "dali.py"
_ERROR_CHARS_MAX: Final = 2000


def read_pipeline(context: ModelContext) -> bytes:
    """The serialized pipeline: of the file that the configuration names (`model.dali`), which may be Python as well, else of
    `dali.py`. Raises Unavailable when there is neither, Internal for a file that is not a pipeline."""
    fallback = context.version_directory / PYTHON_FILENAME
    try:
        path = model_file(context, (DEFAULT_FILENAME, PYTHON_FILENAME))
        content = read_whole(path, context.config.name)
        if is_pipeline(content):
            return content
        return serialized(path, context.config.name)
    except TpyError:
        if not fallback.is_file() or fallback == context.version_directory / context.config.default_model_filename:
            raise
    return serialized(fallback, context.config.name)


def serialized(path: Path, model: str) -> bytes:
    """Runs the file in a separate process. Raises Internal with the end of its output, and for a file that is not a .py file."""
    failed = f"unable to load model '{model}': '{path.name}' is neither a serialized pipeline of DALI nor a Python file of one"
    if path.suffix != ".py":
        raise Internal(failed + contents_of(path, "dali", "write one by Pipeline.serialize(filename=...)"))
    with tempfile.TemporaryDirectory(prefix="tpy_dali_") as folder:
        target = Path(folder) / DEFAULT_FILENAME
        program = [sys.executable, "-P", serializing.__file__, str(path), str(target)]
        try:
            done = subprocess.run(
                program, stdin=subprocess.DEVNULL, capture_output=True, timeout=DALI_SERIALIZE_S_MAX, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise Internal(f"{failed}: it runs for more than {DALI_SERIALIZE_S_MAX} s") from error
        if done.returncode != 0 or not target.is_file():
            text = done.stderr.decode(errors="replace").strip()[-_ERROR_CHARS_MAX:] or f"exit status {done.returncode}"
            raise Internal(f"{failed}: {text}")
        return target.read_bytes()
