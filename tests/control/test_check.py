"""`check_repository`: every problem of every model, with its place, nothing loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.control.test_disk import make_model, write
from tests.control.world import CONFIG
from tpy.errors import Unavailable
from tpy_control.check import check_repository

ENSEMBLE = """platform: "ensemble" ensemble_scheduling { step [{ model_name: "nobody" model_version: -1
input_map { key: "I" value: "IN" } output_map { key: "O" value: "OUT" } }] }"""


def texts(path: Path, name: str, *, auto_complete: bool = True) -> list[str]:
    (found,) = [check for check in check_repository([path], auto_complete=auto_complete) if check.name == name]
    return [str(problem) for problem in found.problems]


def test_a_good_repository_has_no_errors(tmp_path: Path) -> None:
    make_model(tmp_path, "a")
    make_model(tmp_path, "b", 1, 2)
    checks = check_repository([tmp_path])
    assert [check.name for check in checks] == ["a", "b"]
    assert all(check.ok and not check.problems for check in checks)
    assert check_repository([]) == []


def test_all_problems_of_a_file_are_found_with_their_places(tmp_path: Path) -> None:
    model = make_model(tmp_path)
    write(model / "config.pbtxt", "nonsense: 3\n" + CONFIG + "max_batch_sise: 1\n")
    found = texts(tmp_path, "m")
    assert len(found) == 2
    assert found[0].startswith(f"{model}/config.pbtxt:1:1: ")
    assert "max_batch_size" in found[1], "says what may have been meant"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (CONFIG + "max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
        (CONFIG + "version_policy { specific { versions: [7] } }", "found 1"),
        (
            CONFIG + 'model_repository_agents { agents [{ name: "decrypt" }] }',
            "what the repository agent 'decrypt' does when the model is loaded is not checked",
        ),
        (
            CONFIG + 'model_repository_agents { agents [{ name: "checksum" parameters { key: "MD5:1/model.bin" value: "0" } }] }',
            "expected 0",
        ),
        (
            ENSEMBLE,
            "ensemble 'm' depends on 'nobody', which no repository has",
        ),
    ],
)
def test_contradictions(tmp_path: Path, config: str, said: str) -> None:
    write(make_model(tmp_path) / "config.pbtxt", config)
    assert any(said in text for text in texts(tmp_path, "m")), texts(tmp_path, "m")


def _tensor(kind: str, name: str, datatype: str = "TYPE_FP32") -> str:
    return f'{kind} {{ name: "{name}" data_type: {datatype} dims: [ 4 ] }}\n'


MEMBER = 'backend: "python"\n' + _tensor("input", "IN") + _tensor("output", "OUT")


@pytest.mark.parametrize(
    ("member", "said"),
    [
        (MEMBER, ""),
        ('backend: "python"', ""),  # its model will say
        (MEMBER.replace('"IN"', '"IN2"'), "ensemble tensor A is mapping to non-existing input IN in model step"),
        (MEMBER + _tensor("input", "MORE"), "input MORE in model step is not mapped to any ensemble tensors"),
        (MEMBER.replace("FP32", "INT8"), "inconsistent data type: TYPE_FP32 is inferred from model m while TYPE_INT8"),
        (MEMBER.replace("[ 4 ]", "[ 5 ]"), "inconsistent shape: [4] is inferred from model m while [5] is"),
    ],
)
def test_ensembles_and_their_members_agree(tmp_path: Path, member: str, said: str) -> None:
    """The errors that a load would give, as far as the configurations tell."""
    write(make_model(tmp_path, "step") / "config.pbtxt", member)
    maps = 'input_map { key: "IN" value: "A" } output_map { key: "OUT" value: "B" }'
    steps = f'step {{ model_name: "step" model_version: -1 {maps} }}'
    ensemble = f'platform: "ensemble"\n{_tensor("input", "A")}{_tensor("output", "B")}ensemble_scheduling {{\n{steps} }}\n'
    write(make_model(tmp_path) / "config.pbtxt", ensemble)
    found = texts(tmp_path, "m")
    assert len(found) == bool(said), found
    assert all(said in text and "ensemble_scheduling.step" in text for text in found), found


def test_missing_versions_odd_folders_and_duplicates(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    write(one / "m" / "config.pbtxt", CONFIG)
    (one / "m" / "1abc").mkdir()
    make_model(two)
    checks = check_repository([one, two])
    found = [[str(problem) for problem in check.problems] for check in checks]
    assert any("model appears in two or more repositories" in text for text in found[0])
    assert any("warning" in text and "1abc" in text for text in found[0])
    assert any("at least one version must be available" in text for text in found[0])
    assert [check.ok for check in checks] == [False, False]
    assert check_repository([two], namespacing=True)[0].ok


def test_strict_configurations(tmp_path: Path) -> None:
    write(tmp_path / "m.identity" / "1" / "model.bin")
    assert texts(tmp_path, "m.identity") == []
    (text,) = texts(tmp_path, "m.identity", auto_complete=False)
    assert "automatic completion is disabled" in text


def test_a_repository_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match="failed to stat file"):
        check_repository([tmp_path / "no"])
