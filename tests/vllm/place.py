"""The environment of vLLM and the model of these tests, which `make test-vllm` makes."""

from __future__ import annotations

from pathlib import Path

ENVIRONMENT = Path(__file__).resolve().parents[2] / ".vllm"
MODEL = ENVIRONMENT / "models" / "smollm2"
