"""Models that only the curves need."""

from __future__ import annotations

from pathlib import Path

from benchmarks.servers.models import IDENTITY_INPUT, IDENTITY_OUTPUT, PYTHON_IDENTITY

ROW_FLOATS = 16

_CONFIG = """\
name: "{name}"
backend: "{backend}"
max_batch_size: {batch}
input [ {{ name: "{input}" data_type: TYPE_FP32 dims: [ {floats} ] }} ]
output [ {{ name: "{output}" data_type: TYPE_FP32 dims: [ {floats} ] }} ]
instance_group [ {{ kind: KIND_CPU count: 1 }} ]
{more}"""


def write_rows_identity(repository: Path, name: str, *, batch: int, together: bool) -> None:
    """An identity model of rows of 16 floats, at most `batch` of them. `together`: a model.py that is given what waits in one
    batch, else the built-in backend and one request at a time."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    config = _CONFIG.format(
        name=name,
        backend="python" if together else "identity",
        batch=batch,
        input=IDENTITY_INPUT,
        output=IDENTITY_OUTPUT,
        floats=ROW_FLOATS,
        more="dynamic_batching { }\n" if together else "",
    )
    (repository / name / "config.pbtxt").write_text(config)
    if together:
        (version / "model.py").write_text(PYTHON_IDENTITY)
