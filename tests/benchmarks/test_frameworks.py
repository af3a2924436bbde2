"""The row of frameworks: what it writes, and what it says where one is missing. Needs none of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import framework_models, processes
from benchmarks.rows.frameworks import FRAMEWORKS, config_of
from tpy.config import parse_pbtxt


def test_configurations_have_one_thread_and_one_instance() -> None:
    for framework in FRAMEWORKS:
        config = parse_pbtxt(config_of(framework, framework.batches[-1])).config
        assert (config.backend, config.max_batch_size) == (framework.backend, framework.batches[-1])
        assert {value.string_value for value in config.parameters.values()} <= {"1"}
        assert [group.count for group in config.instance_group] == [1]


def test_without_frameworks_no_file_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework_models, "is_installed", lambda module: False)
    framework_models.main(tmp_path / "files")
    assert list((tmp_path / "files").iterdir()) == []


def test_the_parent_of_a_module_may_be_missing() -> None:
    assert not framework_models.is_installed("nowhere.inside")
    assert framework_models.is_installed("json.decoder")


def test_the_age_of_a_process() -> None:
    assert 0 < processes.age_s(os.getpid()) < processes.age_s(1) + 1
