"""The OpenAPI document against a running server: Schemathesis reads it, makes right and wrong requests, judges the answers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from .repositories import ModelFolder
from .server import ServerProcess

CHECKS = (
    "status_code_conformance",  # no status that the document does not name: a 500 is named where Triton answers one
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
)


def test_the_document_is_true(repository: Path, tmp_path: Path) -> None:
    ModelFolder(repository, "identity").identity()
    settings = tmp_path / "schemathesis.toml"
    settings.write_text('[parameters]\n"path.model" = "identity"\n"path.version" = 1\n')
    flags = ("--model-control-mode=explicit", "--load-model=identity", "--allow-client-shm=true")
    with ServerProcess(*flags, repositories=[repository]) as server:
        command = [
            Path(sys.executable).with_name("st"),
            *("--config-file", settings, "run", f"http://{server.http}/v2/openapi.json"),
            *("--checks", ",".join(CHECKS), "--max-examples", "4", "--phases", "examples,coverage,fuzzing", "--no-color"),
            *("--generation-deterministic", "--exclude-path-regex", "/unload$|/load$", "--request-timeout", "20"),
        ]
        run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100)
        assert run.returncode == 0, run.stdout[-8000:] + run.stderr[-2000:]
        counts = re.search(r"Selected: (\d+)/\d+\s+Tested: (\d+)", run.stdout)
        assert counts is not None, run.stdout[-2000:]
        selected, tested = map(int, counts.groups())
        assert selected == tested > 40
