"""The models in folders that SageMaker fills."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tpy_platforms.sagemaker import models
from tpy_platforms.sagemaker.models import find_model


def test_a_configuration_that_is_a_pipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for its writer: it is no ensemble."""
    for name, text in (("a", 'platform: "ensemble"'), ("b", 'backend: "python"')):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    (tmp_path / "c").mkdir()
    os.mkfifo(tmp_path / "c" / "config.pbtxt")
    monkeypatch.setattr(models, "_URL", models.re.compile(".*"))
    assert find_model(str(tmp_path)) == (tmp_path, "a")
