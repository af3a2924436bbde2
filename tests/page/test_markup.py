"""Names, labels, reasons, log lines and answers that are markup or script: every view shows them as text, no script runs, and
nothing is asked for elsewhere. Once in a browser that obeys the page's policy, where a violation of it fails the test, and once
in one that ignores it: the policy is not all that protects visitors."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess
from tpy.frontends.access.config import digest, key_entry

from .conftest import Tab

expect = pytest.importorskip("playwright.sync_api", reason="the tests of the page need Playwright: make test-page").expect

FOREIGN = "http://127.0.0.1:9/stolen"
MARKUP = f'"><img src="{FOREIGN}" onerror="window.hurt=1"><script>window.hurt=1</script>'
NAMES = (
    "<img src=x onerror=window.hurt=1>",
    '"><svg onload=window.hurt=1>',
    "' onmouseover='window.hurt=1' autofocus onfocus='window.hurt=1",
    "javascript:window.hurt=1",
    "{{constructor.constructor('window.hurt=1')()}}${window.hurt=1}",
    "<iframe srcdoc=&lt;script&gt;parent.hurt=1&lt;&#47;script&gt;>" + "x" * 150,
)
MODEL = f"""
import numpy as np
import triton_python_backend_utils as pb_utils

MARKUP = {MARKUP!r}

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_error(MARKUP)
        print(MARKUP, flush=True)

    def execute(self, requests):
        answers = []
        for request in requests:
            if "fail" in request.request_id():
                answers.append(pb_utils.InferenceResponse(error=pb_utils.TritonError(MARKUP)))
                continue
            answers.append(pb_utils.InferenceResponse([pb_utils.Tensor("O" + MARKUP, np.array([MARKUP], object))]))
        return answers
"""
BROKEN = f"""
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError({MARKUP!r})
"""
_TEXT = json.dumps(MARKUP)
CONFIG = f"""
backend: "python"
input [ {{ name: "A" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: {json.dumps("O" + MARKUP)} data_type: TYPE_STRING dims: [ 1 ] label_filename: "labels.txt" }} ]
parameters {{ key: {_TEXT} value {{ string_value: {_TEXT} }} }}
metric_tags {{ key: "tag" value: {_TEXT} }}
"""
STEPS = f"""
platform: "ensemble"
input [ {{ name: {_TEXT} data_type: TYPE_STRING dims: [ 1 ] }} ]
output [ {{ name: "FOUND" data_type: TYPE_STRING dims: [ 1 ] }} ]
ensemble_scheduling {{ step [ {{ model_name: {json.dumps(NAMES[0])} model_version: -1
  input_map {{ key: "A" value: {_TEXT} }} output_map {{ key: {json.dumps("O" + MARKUP)} value: "FOUND" }} }} ] }}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("hostile")
    for name in NAMES:
        ModelFolder(home / "models", name).config(CONFIG).python(MODEL).file("labels.txt", f"{MARKUP}\n")
    ModelFolder(home / "models", "broken").config(CONFIG).python(BROKEN).file("labels.txt", f"{MARKUP}\n")
    (ModelFolder(home / "models", "steps").config(STEPS).path / "1").mkdir()
    kept = home / "<img src=x onerror=window.hurt=1>"
    kept.mkdir()
    (kept / f"{NAMES[0]}.tpyrec").write_text("x")
    entry = key_entry("<b onclick=window.hurt=1>", digest("key"), ["infer", "observe", "manage"], ["*"])
    (home / "auth.toml").write_text(f'anonymous = ["infer", "observe", "manage"]\n{entry}')
    flags = (
        "--page-on-http=true",
        "--exit-on-error=false",
        "--strict-readiness=false",
        f"--id={MARKUP}",
        f"--recording-directory={kept}",
        f"--auth-config={home / 'auth.toml'}",
        f"--trace-config=triton,file={kept / 'trace.json'}",
        "--trace-config=level=TIMESTAMPS",
        "--trace-config=rate=1",
    )
    with ServerProcess(*flags, repositories=[home / "models"]) as running:
        for number, name in enumerate(NAMES):
            _infer(running, name, f"{MARKUP}{'fail' if number % 2 else ''}")
        yield running


def _infer(server: ServerProcess, model: str, request_id: str) -> None:
    tensor = {"name": "A", "shape": [1], "datatype": "BYTES", "data": [MARKUP]}
    body = json.dumps({"id": request_id, "inputs": [tensor]}).encode()
    request = urllib.request.Request(f"http://{server.http}/v2/models/{urllib.parse.quote(model, safe='')}/infer", body)
    with urllib.request.build_opener(_AnyStatus()).open(request, timeout=30) as answer:
        assert answer.status in (200, 500), answer.read()


class _AnyStatus(urllib.request.HTTPErrorProcessor):
    def http_response(self, request: Any, response: Any) -> Any:
        return response


@pytest.fixture(params=["policy", "no policy"])
def watched(request: pytest.FixtureRequest, chromium: Any) -> Iterator[Tab]:
    """A tab of a browser that obeys the page's policy, or does not; what it asks for elsewhere is a problem."""
    context = chromium.new_context(bypass_csp=request.param == "no policy", reduced_motion="reduce")
    context.set_default_timeout(20_000)
    page = context.new_page()
    made = Tab(page)
    page.on("request", lambda asked: _note(made, asked.url))
    page.on("dialog", lambda dialog: made.problems.append(f"dialog: {dialog.message}"))
    made.expected.append("status of (400|404|500)")
    yield made
    context.close()
    made.check()


def _note(tab: Tab, url: str) -> None:
    if urllib.parse.urlsplit(url).scheme in ("http", "https") and FOREIGN in url:
        tab.problems.append(f"asked for {url}")


def _unhurt(page: Any) -> None:
    """No script ran, and what was sent is text: no element that the page does not make."""
    assert page.evaluate("window.hurt") is None
    assert page.locator("main img, main iframe, main script, main b[onclick], svg[onload], [onerror], [onfocus]").count() == 0


def test_every_view_shows_it_as_text(watched: Tab, server: ServerProcess) -> None:
    page: Any = watched.page
    address = f"http://{server.http}/page/"
    page.goto(address)
    expect(page.locator("table.models tbody tr")).to_have_count(len(NAMES) + 2)
    expect(page.locator("#server")).to_have_text(MARKUP)
    expect(page.locator("main")).to_contain_text("window.hurt=1</script>")  # the reason of the broken one
    _unhurt(page)
    for name in NAMES:
        page.goto(f"{address}#/models/{urllib.parse.quote(name, safe='')}")
        expect(page.locator("h1")).to_have_text(name)
        for details in page.locator("main details").all():
            details.evaluate("it => it.open = true")
        page.get_by_role("textbox", name="Values of A").fill(MARKUP)
        page.get_by_role("button", name="Run").click()
        expect(page.locator(".try-it .result")).to_contain_text("answered in")
        expect(page.locator(".outputs")).to_contain_text("window.hurt=1</script>")
        _unhurt(page)
    page.goto(f"{address}#/models/steps")
    expect(page.locator(".graph")).to_contain_text("onerror")
    _unhurt(page)
    page.goto(f"{address}#/models/broken")
    expect(page.locator("main")).to_contain_text("window.hurt=1</script>")
    _unhurt(page)
    page.goto(f"{address}#/log")
    expect(page.locator("main")).to_contain_text("window.hurt=1</script>")
    _unhurt(page)
    for view in ("traces", "recording"):
        page.goto(f"{address}#/{view}")
        expect(page.locator("main")).to_contain_text("onerror")
        _unhurt(page)
    page.goto("about:blank")


@pytest.mark.parametrize("where", ["#/models/{}", "#/{}", "#/models/steps/{}", "?{}", "#{}"])
def test_addresses_are_text(watched: Tab, server: ServerProcess, where: str) -> None:
    """A link that somebody sends."""
    page: Any = watched.page
    for text in (*NAMES, MARKUP, "__proto__", "%", "..%2f..%2fv2%2flogging"):
        page.goto(f"http://{server.http}/page/{where.format(urllib.parse.quote(text, safe=''))}")
        expect(page.locator("main > *").first).to_be_visible()
        _unhurt(page)
    page.goto("about:blank")


def test_pages_without_scripts(watched: Tab, server: ServerProcess) -> None:
    page: Any = watched.page
    for path in ("/v2/models", "/docs", "/v2", f"/v2/models/{urllib.parse.quote(NAMES[0], safe='')}", "/v2/models/broken"):
        page.goto(f"http://{server.http}{path}")
        assert page.evaluate("window.hurt") is None
        assert page.locator("img, iframe, svg[onload], [onerror], [onfocus]").count() == 0, path
    page.goto("about:blank")
