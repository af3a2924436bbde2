"""The configuration that is served equals, field by field, what Triton 2.51 answered for the same config.pbtxt.

recorded/<model>.pbtxt is the file, recorded/<model>.json the answer of /v2/models/<model>/config, on a machine without GPU.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpy.config import (
    ModelConfig,
    errors_of,
    from_message,
    normalise,
    normalise_instance_groups,
    parse_json,
    parse_pbtxt,
    resolve,
    to_json,
    to_message,
    validate,
)
from tpy.config.model_config import InstanceKind

RECORDED = Path(__file__).with_name("recorded")
MODELS = sorted(path.stem for path in RECORDED.glob("*.pbtxt"))
PYTHON_KINDS = frozenset({InstanceKind.KIND_CPU, InstanceKind.KIND_GPU, InstanceKind.KIND_MODEL})


def served(model: str) -> ModelConfig:
    text = (RECORDED / f"{model}.pbtxt").read_text(encoding="utf-8")
    config = resolve(parse_pbtxt(text).config, directory_name=model, version_files=("model.py",))
    config, _ = normalise_instance_groups(normalise(config), gpus=(), supported=PYTHON_KINDS)
    return config


@pytest.mark.parametrize("model", MODELS)
def test_the_served_configuration_is_tritons(model: str) -> None:
    answer = json.loads((RECORDED / f"{model}.json").read_text(encoding="utf-8"))
    if "ensemble_scheduling" in answer:
        answer["ensemble_scheduling"]["max_inflight_requests"] = 0  # a field that is newer than 2.51
    assert json.loads(json.dumps(to_json(served(model)))) == answer


@pytest.mark.parametrize("model", MODELS)
def test_what_triton_serves_is_valid_and_stable(model: str) -> None:
    config = served(model)
    assert not errors_of(validate(config))
    assert normalise(config) == config
    assert normalise_instance_groups(config, gpus=(), supported=PYTHON_KINDS)[0] == config
    assert from_message(to_message(config)) == config
    answer = (RECORDED / f"{model}.json").read_text(encoding="utf-8")
    assert parse_json(answer) == config


def test_there_are_recordings() -> None:
    assert len(MODELS) >= 8
