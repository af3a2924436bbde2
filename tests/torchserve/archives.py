"""Archives as torch-model-archiver makes them: of networks with random weights for stock handlers, and of handlers of one's own.
Run by the Python of the environment with PyTorch: `python archives.py STORE`."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

NETWORK = """
import torch


class Network(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(48, 7))
"""

SENTENCES = """
import torch


class Sentences(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.EmbeddingBag(64, 8)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, words, offsets):
        return self.linear(self.embedding(words, offsets))
"""

DETECTOR = """
import torch


class Detector(torch.nn.Module):
    def forward(self, images):
        means = images.mean(dim=(1, 2, 3))
        boxes = torch.tensor([[0.0, 1.0, 2.0, 3.0], [4.0, 5.0, 6.0, 7.0], [8.0, 9.0, 10.0, 11.0]])
        return [
            {"boxes": boxes * mean, "labels": torch.tensor([1, 2, 3]), "scores": torch.tensor([0.9, 0.2, 0.5])} for mean in means
        ]
"""

SEGMENTER = """
import torch


class Segmenter(torch.nn.Module):
    def forward(self, images):
        return {"out": torch.nn.functional.avg_pool2d(images, 56)}
"""

CUSTOM = """
import json

import torch
from ts.torch_handler.base_handler import BaseHandler


class Rows(BaseHandler):
    def initialize(self, context):
        super().initialize(context)
        self.offset = context.model_yaml_config["offset"]

    def preprocess(self, data):
        rows = [row.get("data") or row.get("body") for row in data]
        return torch.tensor([json.loads(row) if isinstance(row, (bytes, bytearray, str)) else row for row in rows])

    def inference(self, data):
        return self.model(data) + self.offset

    def postprocess(self, data):
        return [{"row": row, "largest": max(row)} for row in data.tolist()]
"""

FUNCTION = """
from ts.utils.util import PredictionException


def handle(data, context):
    if data is None:
        return None
    answers = []
    for at, row in enumerate(data):
        content = row.get("data") or row.get("body")
        if content == b"refuse":
            raise PredictionException("not today", 422)
        if content == b"fail":
            raise ValueError("broken")
        if content == b"status":
            context.set_response_status(202, "Accepted", at)
            context.set_response_content_type(at, "text/plain")
        answers.append({name: len(value) for name, value in row.items()} if content != b"status" else "later")
    return answers
"""


WORKFLOW = """
from ts.utils.util import PredictionException


def before(data, context):
    if data is None:
        return None
    row = data[0]
    body = row.get("data") or row.get("body")
    if body == b"refuse":
        raise PredictionException("not today", 422)
    if body == b"fail":
        raise ValueError("broken")
    if body == b"keys":
        return [" ".join(sorted(row)).encode()]
    return [body]


def after(data, context):
    if data is None:
        return None
    kinds = {name: type(value).__name__ for name, value in data[0].items()}
    return [{"said": bytes(data[0]["body"]).decode(), "kinds": kinds, "rows": len(data)}]
"""

SPECIFICATION = """
models:
  min-workers: 1
  max-workers: 1
  batch-size: 2
  max-batch-delay: 1
  retry-attempts: 2
  timeout-ms: 10000
  counts:
    url: function.mar
dag:
  before: [counts]
  counts: [after]
"""


def write_workflow(path: Path) -> None:
    """As torch-workflow-archiver makes it."""
    said = {"workflowName": path.stem, "specFile": "workflow.yaml", "handler": "workflow_handler.py"}
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("workflow_handler.py", WORKFLOW)
        packed.writestr("workflow.yaml", SPECIFICATION)
        packed.writestr(
            "WAR-INF/MANIFEST.json",
            json.dumps({"createdOn": "24/11/2026 17:04:36", "workflow": said, "archiverVersion": "0.2.15"}),
        )


SOURCES = {
    "network": NETWORK,
    "sentences": SENTENCES,
    "detector": DETECTOR,
    "segmenter": SEGMENTER,
    "rows": CUSTOM,
    "function": FUNCTION,
}
ARCHIVES = {
    "eager": "--model-file network.py --serialized-file network.pth --handler image_classifier --extra-files labels",
    "scripted": "--serialized-file scripted.pt --handler image_classifier",
    "detector": "--model-file detector.py --handler object_detector --extra-files labels",
    "segmenter": "--model-file segmenter.py --handler image_segmenter",
    "texts": "--model-file sentences.py --serialized-file texts.pth --handler text_classifier --extra-files vocabulary,labels",
    "rows": "--serialized-file linear.pt --handler rows.py --config-file rows.yaml",
    "function": "--handler function.py",
}
"""Options of torch-model-archiver by name."""

WORDS = "the|cat|is|not|here|the cat|cat is|is not|not here|i|i will|will|go|will go|cafe|go cafe"


def write(store: Path) -> None:
    """Write all archives to a new folder."""
    import torch

    source = store / "source"
    for folder in ("labels", "vocabulary"):
        (source / folder).mkdir(parents=True)
    for name, text in SOURCES.items():
        (source / f"{name}.py").write_text(text)
    sys.path.insert(0, str(source))
    from network import Network  # type: ignore[import-not-found]
    from sentences import Sentences  # type: ignore[import-not-found]

    torch.manual_seed(1)
    torch.save(Network().state_dict(), source / "network.pth")
    torch.jit.script(Network().eval()).save(source / "scripted.pt")
    torch.jit.script(torch.nn.Linear(3, 2).eval()).save(source / "linear.pt")
    torch.save(Sentences().state_dict(), source / "texts.pth")
    torch.save({word: at for at, word in enumerate(WORDS.split("|"))}, source / "vocabulary" / "source_vocab.pt")
    (source / "labels" / "index_to_name.json").write_text(json.dumps({str(at): f"class {at}" for at in range(7)}))
    (source / "rows.yaml").write_text("minWorkers: 1\nmaxWorkers: 1\nbatchSize: 4\nmaxBatchDelay: 2\noffset: 0.5\n")
    for name, options in ARCHIVES.items():
        command = [str(Path(sys.executable).with_name("torch-model-archiver")), "--model-name", name, "--version", "1.0"]
        subprocess.run([*command, *options.split(), "--export-path", str(store)], cwd=source, check=True)
    write_workflow(store / "tour.war")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
