"""TorchServe's stock handlers, with PyTorch and without TorchServe. Those of images need torchvision: tests/torchserve."""

from __future__ import annotations

import io
import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from .server import ServerProcess, run_tpy
from .test_import_torchserve import archive, call

torch = pytest.importorskip("torch")

SENTENCES = """
import torch


class Sentences(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(8, 2)
        self.linear = torch.nn.Linear(2, 2)

    def forward(self, words, offsets):
        return self.linear(self.embedding(words, offsets))
"""

ROWS = """
import torch
from ts.torch_handler.base_handler import BaseHandler


class Rows(BaseHandler):
    def preprocess(self, data):
        return torch.tensor([row["body"] for row in data])
"""


def saved(value: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def test_stock_handlers(tmp_path: Path) -> None:
    assert find_spec("ts") is None, "TorchServe is installed"
    namespace: dict[str, type] = {}
    exec(SENTENCES, namespace)
    network = namespace["Sentences"]()
    words = {word: at for at, word in enumerate(["it", "is", "not", "here", "it is", "is not", "not here"])}
    store = tmp_path / "store"
    store.mkdir()
    archive(
        store / "texts.mar",
        "texts",
        "",
        files={
            "sentences.py": SENTENCES,
            "sentences.pth": saved(network.state_dict()),
            "source_vocab.pt": saved(words),
            "index_to_name.json": '{"object_type_names": ["good", "bad"]}',
        },
        handler="text_classifier",
        modelFile="sentences.py",
        serializedFile="sentences.pth",
    )
    linear = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(3, 2)), linear)
    layer = torch.jit.load(io.BytesIO(linear.getvalue()))
    archive(store / "rows.mar", "rows", ROWS, files={"linear.pt": linear.getvalue()}, serializedFile="linear.pt")
    assert run_tpy("import", str(store), "--to", str(tmp_path / "models"), "--trust").code == 0
    with ServerProcess("--allow-torchserve=true", repositories=[tmp_path / "models"]) as server:
        status, text, _ = call(server, "/predictions/texts", "It <b>isn't</b> h\u00e9re!".encode(), Content_Type="text/plain")
        assert status == 200, text
        numbers = torch.tensor([words[each] for each in ("it", "is", "not", "here", "it is", "is not", "not here")])
        expected = torch.softmax(network(numbers, torch.tensor([0])), dim=1)[0].tolist()
        assert json.loads(text) == pytest.approx(dict(zip(("good", "bad"), expected, strict=True)))
        status, text, _ = call(server, "/predictions/rows", b"[1.0, 2.0, 3.0]", Content_Type="application/json")
        assert status == 200, text
        assert json.loads(text) == pytest.approx(layer(torch.tensor([1.0, 2.0, 3.0])).tolist())
