"""Model files that are replaced, truncated, taken away and made unreadable under load."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException

from tests.backends import onnx_models
from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until

from .load import loading
from .models import FACTOR, write_models

_UNREADABLE = "/proc/self/mem"
"""Reading its first byte is an input/output error for everybody, also for root, whom permissions do not stop."""


class Changing:
    """The file of model `affine`. `allowed` are the factors that may answer: the last good one, and one that is on its way."""

    def __init__(self, model: ModelFolder) -> None:
        self.model = model
        self.newest = FACTOR
        self.allowed = {FACTOR}

    def good(self) -> None:
        """Another factor."""
        self.newest += 1
        self.allowed.add(self.newest)
        self.model.affine(1, self.newest)

    def truncated(self) -> None:
        """The first half of a model."""
        content = onnx_models.affine(self.newest + 100, 0)
        self.model.file("1/model.onnx", content[: len(content) // 2])

    def empty(self) -> None:
        """No byte."""
        self.model.file("1/model.onnx", b"")

    def garbage(self) -> None:
        """Bytes that are no model."""
        self.model.file("1/model.onnx", bytes(range(256)) * 64)

    def in_place(self) -> None:
        """Written over where it is, as a copy does that was interrupted."""
        (self.model.path / "1" / "model.onnx").write_bytes(b"\0" * 1000)

    def unreadable(self) -> None:
        """A file that cannot be read."""
        self._link(_UNREADABLE)

    def forbidden(self) -> None:
        """A file without permissions. To root it is a good one, so then this is `unreadable`."""
        if os.geteuid() == 0:
            self.unreadable()
        else:
            self.garbage()
            (self.model.path / "1" / "model.onnx").chmod(0)

    def dangling(self) -> None:
        """A link to nothing."""
        self._link("nowhere.onnx")

    def circular(self) -> None:
        """A link to itself."""
        self._link("model.onnx")

    def pipe(self) -> None:
        """A pipe without a writer: opening it would wait for ever."""
        self._remove()
        os.mkfifo(self.model.path / "1" / "model.onnx")

    def directory(self) -> None:
        """An empty directory in its place."""
        self._remove()
        (self.model.path / "1" / "model.onnx").mkdir()

    def gone(self) -> None:
        """No file."""
        self._remove()

    def broken(self) -> list[Callable[[], None]]:
        """All ways to break it."""
        contents = [self.truncated, self.empty, self.garbage, self.in_place]
        return [*contents, self.unreadable, self.forbidden, self.dangling, self.circular, self.pipe, self.directory, self.gone]

    def settle(self) -> None:
        """Only the newest factor may answer from now on."""
        self.allowed = {self.newest}

    def _link(self, target: str) -> None:
        self._remove()
        (self.model.path / "1" / "model.onnx").symlink_to(target)

    def _remove(self) -> None:
        file = self.model.path / "1" / "model.onnx"
        if file.is_dir() and not file.is_symlink():
            file.rmdir()
        else:
            file.unlink(missing_ok=True)


def explicit(folder: Path) -> str:
    """Break it, load it: refused. Mend it, load it: served."""
    changing = Changing(write_models(folder / "models")["affine"])
    flags = ("--model-control-mode=explicit", "--load-model=*")
    refusals = []
    with ServerProcess(*flags, repositories=[folder / "models"]) as server:
        with loading(server, lambda factor: factor in changing.allowed) as load, InferenceServerClient(server.http) as client:
            for break_it in changing.broken():
                break_it()
                with pytest.raises(InferenceServerException, match="affine") as caught:
                    client.load_model("affine")
                refusals.append(caught.value.message())
                load.ledger.wait_answered(5, "affine", "chain")
                changing.gone()
                changing.good()
                client.load_model("affine")
                load.ledger.wait_answered(5, "affine", "chain")
        load.ledger.check()
    return f"{len(refusals)} broken files refused, {len(refusals)} updates: {load.ledger}"


def polled(folder: Path) -> str:
    """Break it on disk and wait until the server has seen it; mend it and wait until it is served."""
    changing = Changing(write_models(folder / "models")["affine"])
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    updates = 0
    with ServerProcess(*flags, repositories=[folder / "models"]) as server:
        with loading(server, lambda factor: factor in changing.allowed) as load, InferenceServerClient(server.http) as client:
            for break_it in (changing.truncated, changing.unreadable, changing.pipe, changing.in_place):
                break_it()
                wait_until(lambda: _reason(client))
                load.ledger.wait_answered(5, "affine", "chain")
                changing.gone()
                changing.good()
                wait_until(lambda: _factor(client) == changing.newest and not _reason(client))
                load.ledger.wait_answered(5, "affine", "chain")
                updates += 1
        load.ledger.check()
    return f"{updates} broken files, {updates} updates: {load.ledger}"


def _reason(client: InferenceServerClient) -> str:
    """The difference of `affine` from its files; empty if there is none."""
    [row] = [row for row in client.get_model_repository_index() if row["name"] == "affine"]
    assert row["state"] == "READY", row
    return str(row.get("reason", ""))


def _factor(client: InferenceServerClient) -> float:
    body = {"inputs": [{"name": "INPUT", "shape": [1, 3], "datatype": "FP32", "data": [1, 1, 1]}]}
    response = client._post("v2/models/affine/infer", json.dumps(body), {}, None)
    return float(json.loads(response.read())["outputs"][0]["data"][0])
