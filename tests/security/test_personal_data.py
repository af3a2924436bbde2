"""The parts of a request that a server keeps, and where: the table of the page on threats, by a request with known parts."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import stat
import urllib.request
from pathlib import Path

import pytest

from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until

PAGE = Path(__file__).parents[2] / "docs/explanation/threat-model.md"
PARTS = {
    "address": "127.0.0.5",
    "request id": "id-of-somebody",
    "model": "naming",
    "tensors": "words-of-somebody",
    "parameters": "parameter-of-somebody",
    "headers": "header-of-somebody",
    "credentials": "key-of-somebody",
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """All that was written anywhere, by where."""
    folder = tmp_path_factory.mktemp("kept")
    model = 'backend: "identity"\ninput { name: "INPUT0" data_type: TYPE_STRING dims: 1 }\n'
    ModelFolder(folder / "models", "naming").config(f'{model}output {{ name: "OUTPUT0" data_type: TYPE_STRING dims: 1 }}\n')
    (folder / "models" / "naming" / "1").mkdir()
    (folder / "recordings").mkdir()
    flags = [
        f"--access-log={folder / 'access.log'}",
        f"--audit-log={folder / 'audit.log'}",
        f"--recording-directory={folder / 'recordings'}",
        "--http-header-forward-pattern=.*",
        *(
            "--trace-config",
            f"triton,file={folder / 'trace.json'}",
            "--trace-config",
            "level=TIMESTAMPS",
            "--trace-config",
            "rate=1",
        ),
    ]
    with ServerProcess(*flags, repositories=[folder / "models"]) as server:

        def post(path: str, document: object, **headers: str) -> bytes:
            address, _, port = server.http.rpartition(":")
            connection = http.client.HTTPConnection(address, int(port), source_address=(PARTS["address"], 0))
            with contextlib.closing(connection):
                connection.request("POST", path, json.dumps(document), headers)
                answer = connection.getresponse()
                content = answer.read()
            assert answer.status == 200, content
            return content

        post("/v2/recording", {"action": "start"})
        tensor = {"name": "INPUT0", "shape": [1], "datatype": "BYTES", "data": [PARTS["tensors"]]}
        parameters = {"note": PARTS["parameters"]}
        document = {"id": PARTS["request id"], "inputs": [tensor], "parameters": parameters}
        headers = {"X-API-Key": PARTS["credentials"], "Authorization": f"Bearer {PARTS['credentials']}"}
        answer = post("/v2/models/naming/infer", document, **headers, **{"X-Something": PARTS["headers"]})
        assert PARTS["tensors"].encode() in answer
        wait_until((folder / "trace.json").exists)
        post("/v2/recording", {"action": "stop"})
        (recording,) = (folder / "recordings").iterdir()
        wait_until(lambda: "recording" in (folder / "audit.log").read_text())
        with urllib.request.urlopen(f"http://{server.metrics}/metrics") as page:
            metrics = page.read().decode()
        found = {"server's log": server.log, "metrics": metrics, "recordings": recording.read_bytes().decode("latin-1")}
    for place, name in (("access log", "access.log"), ("audit log", "audit.log"), ("traces", "trace.json")):
        found[place] = (folder / name).read_text()
    assert stat.S_IMODE(recording.stat().st_mode) == stat.S_IMODE((folder / "audit.log").stat().st_mode) == 0o600
    return found


def table() -> list[tuple[str, str, bool]]:
    """Place, part and whether it is there, as the page says it."""
    page = PAGE.read_text()
    head, *rows = re.findall(r"^\| (.*) \|$", page[page.index("| written to |") :].partition("\n\n")[0], re.MULTILINE)
    parts = head.split(" | ")[1:]
    return [
        (cells[0], part, cell.startswith("yes"))
        for cells in (row.split(" | ") for row in rows if not row.startswith("-"))
        for part, cell in zip(parts, cells[1:], strict=True)
    ]


@pytest.mark.parametrize(("place", "part", "is_there"), table())
def test_what_is_kept_where(kept: dict[str, str], place: str, part: str, is_there: bool) -> None:
    assert (PARTS[part] in kept[place]) == is_there
