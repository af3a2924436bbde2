"""The same archives and the same requests: TorchServe itself and tpy answer alike."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import requests
from PIL import Image

from . import servers

pytestmark = pytest.mark.skipif(bool(servers.missing()), reason=servers.missing() or "all is there")


class Both(NamedTuple):
    """The addresses of both servers."""

    theirs: str
    ours: str


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    home = tmp_path_factory.mktemp("torchserve")
    store = home / "store"
    servers.build(store)
    with servers.torchserve(home, store) as theirs, servers.tpy(home, store) as ours:
        yield Both(theirs, ours)


def picture() -> bytes:
    buffer = io.BytesIO()
    Image.linear_gradient("L").resize((300, 260)).convert("RGB").save(buffer, "PNG")
    return buffer.getvalue()


TENSOR = [[[0.1] * 8] * 8] * 3
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "a file": ("eager", {"data": picture()}),
    "a file in a form": ("eager", {"files": {"data": ("a.png", picture(), "image/png")}}),
    "a network in TorchScript": ("scripted", {"data": picture()}),
    "a tensor in JSON": ("scripted", {"json": TENSOR}),
    "a version": ("scripted/1.0", {"data": picture()}),
    "objects": ("detector", {"data": picture()}),
    "pixels": ("segmenter", {"data": picture()}),
    "a text": ("texts", {"data": b"The cat isn't <b>here</b>!"}),
    "contractions and accents": ("texts", {"data": "I'll go, caf\u00e9".encode(), "headers": {"Content-Type": "text/plain"}}),
    "a text in a form": ("texts", {"files": {"data": ("a.txt", b"the cat", "text/plain")}}),
    "a word that is not known": ("texts", {"data": b"zebra"}),
    "rows": ("rows", {"data": b"[1.0, 2, 3]"}),
    "rows in JSON": ("rows", {"json": [1.5, 2, 3]}),
    "rows that do not fit": ("rows", {"json": [1, 2]}),
    "a function": ("function", {"data": b"content"}),
    "fields": ("function", {"data": {"data": "a b", "more": ""}}),
    "fields and files": ("function", {"data": {"more": "c"}, "files": {"data": ("a.json", b"[1, 2]", "application/json")}}),
    "broken JSON": ("function", {"data": b"{", "headers": {"Content-Type": "application/json"}}),
    "nothing": ("function", {"data": b""}),
    "a status of the handler": ("function", {"data": b"status"}),
    "an error of the handler": ("function", {"data": b"refuse"}),
    "a failure": ("function", {"data": b"fail"}),
    "no such model": ("none", {"data": b"content"}),
    "no such version": ("function/7.0", {"data": b"content"}),
}


REFUSED = {
    "a word that is not known",
    "rows that do not fit",
    "an error of the handler",
    "a failure",
    "no such model",
    "no such version",
}
"""The others are answered with 2xx."""


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_predictions(both: Both, case: str, method: str) -> None:
    path, sent = CASES[case]
    theirs, ours = (requests.request(method, f"http://{each}/predictions/{path}", timeout=60, **sent) for each in both)
    assert ours.status_code == theirs.status_code, (theirs.text, ours.text)
    assert theirs.ok == (case not in REFUSED), theirs.text
    assert ours.content == theirs.content
    if "content-type" in theirs.headers:
        assert ours.headers["content-type"] == theirs.headers["content-type"]


@pytest.mark.parametrize(
    ("path", "sent", "status"),
    [
        ("tour", {"data": b"content"}, 200),
        ("tour", {"data": b"keys"}, 200),
        ("tour", {"data": b"status"}, 200),
        ("tour", {"files": {"data": ("a.txt", b"some text", "application/octet-stream")}}, 200),
        ("tour", {"data": b"refuse"}, 500),
        ("tour", {"data": b"fail"}, 500),
        ("none", {"data": b"content"}, 404),
    ],
)
def test_workflows(both: Both, path: str, sent: dict[str, Any], status: int) -> None:
    theirs, ours = (requests.post(f"http://{each}/wfpredict/{path}", timeout=60, **sent) for each in both)
    assert (ours.status_code, theirs.status_code) == (status, status)
    if status == 500:  # TorchServe says which node has failed, and not why
        assert ours.json()["type"] == theirs.json()["type"]
        assert ("not today" in ours.text) == (sent["data"] == b"refuse")
    else:
        assert ours.content == theirs.content


@pytest.mark.parametrize(("method", "path"), [("GET", "/ping"), ("GET", "/nothing"), ("POST", "/predictions")])
def test_other_paths(both: Both, method: str, path: str) -> None:
    theirs, ours = (requests.request(method, f"http://{each}{path}", timeout=60) for each in both)
    assert (ours.status_code, ours.json()) == (theirs.status_code, theirs.json())
