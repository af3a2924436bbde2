"""`tpy init` of PyTorch's files. Where PyTorch is not installed these tests are skipped."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .server import ServerProcess, run_tpy
from .test_init import made, refused
from .test_serve_target import ask

NET = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4)

    def forward(self, ids):
        return self.table(ids)

class Sized(Net):
    def __init__(self, size):
        super().__init__()
"""

SAVE = """
import torch, net
network = net.Net().eval()
torch.save(network.state_dict(), "weights.pt")
torch.jit.script(network).save("script.pt")
torch.save(network, "whole.pt")
rows = torch.export.Dim("rows", max=16)
program = torch.export.export(network, (torch.ones(2, 5, dtype=torch.int64),), dynamic_shapes=({0: rows},))
torch.export.save(program, "program.pt2")
"""

IDS = ("--input", "ids:INT64:-1")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a network in each form, and the file of its class."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("saved")
    (folder / "net.py").write_text(NET)
    subprocess.run([sys.executable, "-W", "ignore", "-c", SAVE], cwd=folder, check=True)
    return folder


@pytest.mark.parametrize("file", ["weights.pt", "script.pt", "whole.pt"])
def test_inputs_have_the_names_of_arguments(saved: Path, tmp_path: Path, file: str) -> None:
    network = ["--class", str(saved / "net.py:Net")] if file == "weights.pt" else []
    lines = made(tmp_path, "mine", "--from", str(saved / file), *IDS, *network)
    assert lines[1].split(maxsplit=1)[1] == "inputs: ids; outputs: OUTPUT__0"
    config = (tmp_path / "models" / "mine" / "config.pbtxt").read_text()
    assert 'name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ -1, 4 ]' in config, "an open size is open in the output, too"
    with ServerProcess(str(tmp_path / "models")) as server:
        status, text = ask(server, "/v2/models/mine/generate?rows=1", {"ids": [[1, 2, 1]]})
        rows = json.loads(text)["OUTPUT__0"][0]
        assert (status, len(rows), rows[0], rows[0] != rows[1]) == (200, 3, rows[2], True)


def test_another_name_gets_its_place(saved: Path, tmp_path: Path) -> None:
    lines = made(tmp_path, "mine", "--from", str(saved / "script.pt"), "--input", "tokens:INT64:-1")
    assert lines[1].split(maxsplit=1)[1] == "inputs: tokens__0; outputs: OUTPUT__0"


def test_an_exported_program_says_all_itself(saved: Path, tmp_path: Path) -> None:
    lines = made(tmp_path, "mine", "--from", str(saved / "program.pt2"))
    assert lines[0].startswith("/models/mine/1/model.pt2 ")
    assert "max_batch_size: 16\n" in (tmp_path / "models" / "mine" / "config.pbtxt").read_text()
    assert run_tpy("check", "--deep", str(tmp_path / "models")).out == "1 model checked, 0 with errors\n"
    (tmp_path / "again").mkdir()
    told = refused(tmp_path / "again", "mine", "--from", str(saved / "program.pt2"), *IDS)
    assert "--input: not accepted for an exported program: the file describes its inputs" in told


@pytest.mark.parametrize(
    ("network", "why"),
    [
        ("", "it holds OrderedDict, not a network: weights alone, perhaps."),
        ("net.py:Other", "--class net.py:Other: net.py has no Other"),
        ("none.py:Net", "--class none.py:Net: expected FILE.py:CLASS, the file that defines the network"),
        ("net.py:Sized", "write a function without arguments that makes the network, and name that"),
    ],
)
def test_weights_need_their_network(saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, network: str, why: str) -> None:
    monkeypatch.chdir(saved)
    given = ["--class", network] if network else []
    assert why in refused(tmp_path, "mine", "--from", str(saved / "weights.pt"), *IDS, *given)


def test_a_file_that_is_no_program(saved: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.pt2").write_bytes(b"none")
    told = refused(tmp_path, "mine", "--from", str(tmp_path / "broken.pt2"))
    assert "it is neither an exported program nor a package of AOTInductor" in told
