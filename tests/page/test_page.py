"""The page in Chromium: look, filter, try a model, load and unload, read the log, with keys, on a phone."""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from onnx import TensorProto, helper
from PIL import Image

from tests.backends import onnx_models
from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess
from tpy.messages import DataType

from .conftest import STREAM, STREAM_CONFIG, Tab, page_of

FP32 = DataType.FP32
expect = pytest.importorskip("playwright.sync_api", reason="the tests of the page need Playwright: make test-page").expect


def opened(tab: Tab, server: ServerProcess, view: str = "") -> Any:
    page: Any = tab.page
    page.goto(page_of(server) + view)
    return page


def test_the_overview(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server)
    expect(page.locator("#connection")).to_have_text("ready")
    rows = page.locator("table.models tbody tr")
    expect(rows).to_have_count(10)  # two versions of affine
    broken = rows.filter(has_text="broken")
    expect(broken.locator(".state")).to_have_text("failed")
    expect(broken.locator(".reason")).to_contain_text("the weights are missing")
    page.keyboard.press("/")
    page.keyboard.type("affi")
    expect(rows).to_have_count(2)
    page.locator("#filter").fill("")
    page.get_by_role("combobox", name="States").select_option("failed")
    expect(rows).to_have_count(1)
    page.get_by_role("combobox", name="States").select_option("all")
    page.get_by_role("button", name="Model", exact=True).click()
    expect(page.locator("th[aria-sort=descending]")).to_have_text("Model")
    expect(rows.first).to_contain_text("words")
    rows.first.get_by_role("link").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("sound")


def test_the_reason_of_a_failed_model_is_shown_whole_across_the_table(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server)
    row = page.locator("table.models tbody tr", has_text="broken")
    reason = row.locator(".reason")
    expect(reason).to_contain_text("model.py(4): initialize")  # not in the first line
    assert reason.bounding_box()["width"] > row.bounding_box()["width"] / 2


def test_the_machine_is_on_the_overview(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server)
    expect(page.locator(".tile", has_text="CPU of the machine")).to_have_text(re.compile(r"^\d+ %"))
    expect(page.locator(".tile", has_text="GiB memory")).to_have_text(re.compile(r"^[\d.]+ [KMG]iB"))
    expect(page.locator(".tile", has_text="GPU")).to_have_count(0)


@pytest.mark.parametrize("flags", [(), ("--frontend-processes=1",)], ids=["one process", "a frontend process"])
def test_the_gpus_are_on_the_overview(flags: tuple[str, ...], tab: Tab, tmp_path: Path) -> None:
    ModelFolder(tmp_path, "affine").config(AFFINE_CONFIG).affine(1, 2)
    flags = ("--page-on-http=true", "--metrics-interval-ms=100", *flags)
    with ServerProcess(*flags, repositories=[tmp_path], program=("-m", "tests.page.server_with_gpus", "serve")) as server:
        page: Any = tab.page
        page.goto(f"http://{server.http}/page/")
        expect(page.locator(".tile", has_text="GPU")).to_have_text(
            ["37 %GPU 0", "3 GiBof 80 GiB on GPU 0", "–GPU 1", "3 GiBof 80 GiB on GPU 1"]
        )
        page.goto("about:blank")


def test_several_models_are_unloaded_and_loaded(tab: Tab, server: ServerProcess) -> None:
    tab.expected.append("status of 400")  # the broken one
    page = opened(tab, server)
    state = {
        name: page.locator("table.models tbody tr", has_text=name).locator(".state") for name in ("declared", "sound", "broken")
    }
    load = page.get_by_role("button", name="Load", exact=True)
    expect(load).to_be_disabled()
    for name in ("declared", "sound"):
        page.get_by_role("checkbox", name=f"Select {name}").check()
    page.get_by_role("button", name="Unload").click()
    expect(page.locator(".result")).to_have_text("Unloaded: 2 of 2.")
    for name in ("declared", "sound"):
        expect(state[name]).to_have_text("not loaded")
        expect(page.get_by_role("checkbox", name=f"Select {name}")).not_to_be_checked()
        page.get_by_role("checkbox", name=f"Select {name}").check()
    page.get_by_role("checkbox", name="Select broken").check()
    load.click()
    expect(page.locator(".result")).to_contain_text("Loaded: 2 of 3.\nbroken: ")
    for name in ("declared", "sound"):
        expect(state[name]).to_have_text("ready")
    expect(page.get_by_role("checkbox", name="Select broken")).to_be_checked()


STEPS_CONFIG = """
platform: "ensemble"
max_batch_size: 4
input [ { name: "RAW" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "FOUND" data_type: TYPE_FP32 dims: [ 3 ] } ]
ensemble_scheduling { step [
  { model_name: "second" model_version: -1
    input_map { key: "INPUT" value: "between" } output_map { key: "OUTPUT" value: "FOUND" } },
  { model_name: "first" model_version: -1
    input_map { key: "INPUT" value: "RAW" } output_map { key: "OUTPUT" value: "between" } }
] }
"""


def test_the_steps_of_an_ensemble_are_a_graph(tab: Tab, tmp_path: Path) -> None:
    for name in ("first", "second"):
        ModelFolder(tmp_path, name).config(AFFINE_CONFIG).affine(1, 2)
    (ModelFolder(tmp_path, "steps").config(STEPS_CONFIG).path / "1").mkdir()
    page: Any = tab.page
    with ServerProcess("--page-on-http=true", repositories=[tmp_path]) as server:
        page.goto(f"http://{server.http}/page/#/models/first")
        expect(page.locator(".try-it")).to_be_visible()
        expect(page.locator(".graph")).to_have_count(0)
        page.goto(f"http://{server.http}/page/#/models/steps")
        graph = page.locator(".graph")
        expect(graph.locator("rect")).to_have_count(4)
        expect(graph.locator("path")).to_have_count(3)
        expect(graph.locator(".tensor")).to_have_text(["between"])
        nodes = graph.locator("text:not(.note):not(.tensor)")
        # The configuration has the second step first.
        across = sorted((node.bounding_box()["x"], node.text_content()) for node in nodes.all())
        assert [name for _, name in across] == [
            "RAW",
            "first",
            "second",
            "FOUND",
        ]
        graph.get_by_role("link", name="second").click()
        expect(page.locator("h1")).to_have_text("second")
        page.goto("about:blank")


CHAIN = 1200


def shapes_model() -> bytes:
    """A branch that comes together again, and an If."""
    branches = {
        name: helper.make_graph(
            [helper.make_node("Identity", ["sum"], [name])], name, [], [onnx_models.value(name, FP32, ["N", 3])]
        )
        for name in ("then_branch", "else_branch")
    }
    nodes = [
        helper.make_node("Relu", ["INPUT"], ["positive"], name="the positive half"),
        helper.make_node("Neg", ["INPUT"], ["negated"]),
        helper.make_node("Add", ["positive", "negated"], ["sum"]),
        helper.make_node("ReduceMax", ["INPUT"], ["most"], keepdims=0),
        helper.make_node("Cast", ["most"], ["condition"], to=TensorProto.BOOL),
        helper.make_node("If", ["condition"], ["OUTPUT"], **branches),
    ]
    ends = [onnx_models.value("INPUT", FP32, ["N", 3])], [onnx_models.value("OUTPUT", FP32, ["N", 3])]
    graph = helper.make_graph(nodes, "graph", *ends, value_info=[onnx_models.value("positive", FP32, ["N", 3])])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=8)
    content: bytes = made.SerializeToString()
    return content


def chain_model() -> bytes:
    names = ["INPUT", *(f"t{number}" for number in range(CHAIN - 1)), "OUTPUT"]
    nodes = [helper.make_node("Relu", [before], [after]) for before, after in itertools.pairwise(names)]
    ends = [onnx_models.value("INPUT", FP32, ["N", 3])], [onnx_models.value("OUTPUT", FP32, ["N", 3])]
    return onnx_models.model(nodes, *ends)


@pytest.mark.parametrize("flags", [(), ("--frontend-processes=1",)], ids=["one process", "a frontend process"])
def test_the_operators_of_an_onnx_file_are_a_graph(flags: tuple[str, ...], tab: Tab, tmp_path: Path) -> None:
    ModelFolder(tmp_path, "shapes").config('backend: "onnxruntime"').file("1/model.onnx", shapes_model())
    ModelFolder(tmp_path, "chain").config('backend: "onnxruntime"').file("1/model.onnx", chain_model())
    ModelFolder(tmp_path, "words").config(STREAM_CONFIG).python(STREAM)
    tab.expected.append("status of 500")
    page: Any = tab.page
    with ServerProcess("--page-on-http=true", *flags, repositories=[tmp_path]) as server:

        def open_graph(model: str) -> Any:
            page.goto(f"http://{server.http}/page/#/models/{model}")
            page.get_by_text("Operators of model.onnx").click()
            return page.locator(".file-graph")

        content = open_graph("shapes")
        expect(content.locator("p")).to_have_text("6 nodes. Weights are left out.")
        expect(content.locator("text:not(.note)")).to_have_text(
            ["INPUT", "Relu", "Neg", "Add", "ReduceMax", "Cast", "If", "OUTPUT"]
        )
        expect(content.locator("text.note").filter(has_text="branch")).to_have_text(["else_branch, then_br…"])
        expect(content.locator("g", has_text="the positive half").locator("text")).to_have_text(
            ["Relu", "the positive half", "FP32 [N, 3]"]
        )
        expect(content.locator("path")).to_have_count(8)
        places = {name: content.locator("rect").nth(at).bounding_box()["x"] for at, name in enumerate("xrnamcio")}
        assert places["x"] < places["r"] == places["n"] == places["m"] < places["a"] == places["c"] < places["i"] < places["o"]
        expect(open_graph("chain").locator("p")).to_have_text("The first 1,000 of 1,200 nodes. Weights are left out.")
        expect(page.locator("rect.operator")).to_have_count(1000)
        (tmp_path / "chain" / "1" / "model.onnx").write_bytes(chain_model()[:1000])
        page.reload()
        page.get_by_text("Operators of model.onnx").click()
        expect(page.locator(".file-graph .bad")).to_contain_text("'model.onnx' is not an ONNX model, or is damaged: ")
        page.goto(f"http://{server.http}/page/#/models/words")
        expect(page.locator(".try-it")).to_be_visible()
        expect(page.locator(".file-graph")).to_have_count(0)
        page.goto("about:blank")


def test_try_a_model(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/affine")
    page.get_by_role("textbox", name="Values of INPUT").fill("1, 2, 3")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".try-it .result")).to_contain_text("Version 2 answered in")
    expect(page.locator(".outputs td")).to_have_text(["3", "6", "9"])
    expect(page.locator(".codes")).to_contain_text("/v2/models/affine/versions/2/infer")
    expect(page.locator(".codes")).to_contain_text("client.infer(")
    page.get_by_role("textbox", name="Values of INPUT").fill("1, two, 3")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".input .reason")).to_contain_text('expected a number, got "two"')
    page.get_by_role("textbox", name="Shape of INPUT").fill("2, 3")
    page.get_by_role("button", name="ones").click()
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".outputs td")).to_have_text(["3"] * 6)
    expect(page.locator(".totals")).to_contain_text("requests")
    expect(page.locator("meter")).to_have_count(2)  # batches of 1 and of 2
    page.locator(".versions a", has_text="version 1").click()
    expect(page.locator(".try-it .result")).to_be_hidden()  # the form of that version, with the same values
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".outputs td")).to_have_text(["2"] * 6)


def test_the_code_that_is_shown_runs(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/affine")
    page.get_by_role("textbox", name="Values of INPUT").fill("1, 2, 3")
    curl, python = page.locator(".codes pre").all_inner_texts()
    assert '"data":[3.0,6.0,9.0]' in subprocess.run(curl, shell=True, capture_output=True, text=True, timeout=60).stdout
    ran = subprocess.run([sys.executable, "-c", python], capture_output=True, text=True, timeout=60)
    assert "OUTPUT [[3. 6. 9.]]" in ran.stdout, ran.stderr


def test_code_stays_as_it_was_opened_and_selected(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/affine")
    page.locator(".codes summary", has_text="curl").click()
    page.evaluate("getSelection().selectAllChildren(document.querySelectorAll('.codes pre')[1])")
    page.get_by_role("checkbox", name="stream of answers").evaluate("(box) => box.click()")
    expect(page.locator(".codes pre").last).to_contain_text("generate_stream")
    page.get_by_role("checkbox", name="stream of answers").evaluate("(box) => box.click()")
    expect(page.locator(".codes pre").last).to_contain_text("tritonclient")
    expect(page.locator(".codes pre").first).to_be_hidden()
    assert page.evaluate("document.querySelectorAll('.codes pre')[1].contains(getSelection().anchorNode)")
    values = page.get_by_role("textbox", name="Values of INPUT")
    values.fill("none")
    expect(page.locator(".codes .note")).to_contain_text("when the inputs are complete")
    expect(page.locator(".codes pre").last).to_be_hidden()
    values.fill("1, 2, 3")
    expect(page.locator(".codes pre").last).to_be_visible()


def test_a_stream_of_answers(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/words")
    page.get_by_role("textbox", name="Values of TEXT").fill("one two three")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".stream li")).to_have_text(['{"WORD":"one"}', '{"WORD":"two"}', '{"WORD":"three"}'])
    expect(page.locator(".try-it .result")).to_contain_text("3 responses")


def test_a_picture(tab: Tab, server: ServerProcess, tmp_path: Path) -> None:
    Image.new("RGB", (96, 64), (255, 0, 51)).save(tmp_path / "red.png")
    page = opened(tab, server, "#/models/picture")
    page.get_by_label("File for INPUT0").set_input_files(tmp_path / "red.png")
    expect(page.locator(".preview")).to_contain_text("red.png, 96 × 64, drawn to 48 × 32")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".outputs canvas")).to_be_visible()
    page.get_by_text("Values", exact=True).last.click()
    expect(page.locator(".outputs tr").first.locator("td").first).to_have_text("1")
    page.get_by_role("button", name="Remove").click()
    expect(page.locator(".preview canvas")).to_have_count(0)


def test_load_and_unload(tab: Tab, server: ServerProcess) -> None:
    tab.expected.append("status of 400")  # a question after the model that was on its way when it was unloaded
    page = opened(tab, server, "#/models/later")
    expect(page.locator(".title .state")).to_have_text("not loaded")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.locator(".result").first).to_have_text("Loaded.")
    expect(page.locator(".title .state")).to_have_text("ready")
    expect(page.locator(".try-it")).to_be_visible()
    page.get_by_role("button", name="Unload").click()
    expect(page.locator(".title .state")).to_have_text("not loaded")
    expect(page.locator(".try-it")).to_have_count(0)


def test_a_model_that_does_not_load(tab: Tab, server: ServerProcess) -> None:
    tab.expected.append("Failed to load resource: the server responded with a status of")
    page = opened(tab, server, "#/models/broken")
    expect(page.locator(".versions .reason")).to_contain_text("the weights are missing")
    page.get_by_role("button", name="Load", exact=True).click()
    expect(page.locator(".result").first).to_contain_text("load failed for model 'broken'")


def test_the_configuration_is_explained(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/affine")
    tree = page.locator(".tree")
    expect(tree).to_contain_text("max_batch_size 8 The most requests' rows in one execution")
    expect(tree).not_to_contain_text("sequence_batching")


def test_the_log_and_its_settings(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/log")
    lines = page.locator(".log span")
    expect(lines.filter(has_text="Started Management HTTPService")).to_have_count(1)
    expect(page.locator(".log .error").first).to_contain_text("broken")
    with page.expect_response(re.compile(r"/tail\?after=[1-9]")):
        pass  # it has asked again
    expect(lines.filter(has_text="Started Management HTTPService")).to_have_count(1)
    page.get_by_label("verbose").fill("1")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator(".result").first).to_have_text("Applied.")
    expect(page.get_by_role("button", name="Apply")).to_be_focused()
    page.get_by_label("verbose").fill("0")
    page.get_by_role("button", name="Apply").click()
    page.get_by_role("searchbox").fill("no such line")
    expect(page.locator(".log span:visible")).to_have_count(0)


def test_the_trace_settings(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/traces")
    rate = page.locator("input[name=trace_rate]")
    expect(rate).to_have_value("1000")
    rate.fill("7")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator(".result").first).to_have_text("Applied.")
    expect(page.get_by_role("button", name="Apply")).to_be_focused()
    page.reload()
    expect(rate).to_have_value("7")


def test_a_recording(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/recording")
    expect(page.get_by_role("status").filter(has_text="State: off.")).to_be_visible()
    page.get_by_label("Models, names or patterns").fill("affine, words")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_text("It records.", exact=True)).to_be_visible()
    ask(server, "affine", 0.5)
    expect(page.get_by_text("State: recording.")).to_contain_text("requests")
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped.", exact=True)).to_be_visible()
    expect(page.get_by_text("State: stopped.")).to_be_visible()
    file = page.locator("tbody tr")
    expect(file).to_have_count(1)
    expect(file).to_contain_text("tpy replay /")
    expect(file).to_contain_text(f" --url {server.address('Management HTTPService')}")
    expect(file.get_by_role("button", name="Copy")).to_be_visible()


def test_what_is_typed_while_the_page_waits_stays(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/affine")
    held: list[Any] = []
    page.route("**/v2/models/affine/config", lambda route: held.append(route))
    with page.expect_request("**/v2/models/affine/config"):
        page.get_by_text("Change the configuration").click()
    text = page.get_by_role("textbox", name="Configuration")
    text.fill("typed")
    expect(text).to_have_value("typed")
    with page.expect_response("**/v2/models/affine/config"):
        held[0].continue_()
    page.get_by_role("button", name="Validate").click()
    expect(page.get_by_label("Problems").get_by_role("listitem").first).to_be_visible()
    expect(text).to_have_value("typed")


def test_links_to_versions_keep_the_focus(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/affine")
    link = page.locator(".versions a", has_text="version 1")
    link.focus()
    before = page.locator(".totals").inner_text()
    ask(server, "affine", 0.5)
    expect(page.locator(".totals")).not_to_have_text(before)
    expect(link).to_be_focused()


def test_an_address_that_was_typed_wrong(tab: Tab, server: ServerProcess) -> None:
    tab.expected.append("status of 400")
    page = opened(tab, server, "#/models/100%")
    expect(page.get_by_text("There is no model of this name.")).to_be_visible()


def test_the_pictures_of_the_documentation(tab: Tab, server: ServerProcess, tmp_path: Path) -> None:
    """Made anew where TPY_PAGE_PICTURES names a folder, as docs/how-to."""
    page = opened(tab, server, "#/models/affine")
    ask(server, "affine", 6)
    page.get_by_role("textbox", name="Values of INPUT").fill("1, 2, 3")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".outputs td")).to_have_text(["3", "6", "9"])
    expect(page.locator(".timeline .bar").first).to_be_attached()
    folder = Path(os.environ.get("TPY_PAGE_PICTURES", tmp_path))
    page.screenshot(path=folder / "page-model.png", full_page=True, clip={"x": 0, "y": 0, "width": 1280, "height": 1150})
    page.goto(page_of(server))
    expect(page.locator("tbody tr")).to_have_count(10)
    ask(server, "affine", 4)
    page.screenshot(path=folder / "page-overview.png")
    for name in ("page-model.png", "page-overview.png"):
        assert 10_000 < (folder / name).stat().st_size < 150_000


def ask(server: ServerProcess, model: str, seconds: float) -> None:
    """Requests of several sizes for so long."""
    ends = time.monotonic() + seconds
    with tritonclient.http.InferenceServerClient(server.http, concurrency=8) as client:
        while time.monotonic() < ends:
            answers = []
            for size in (1, 2, 4, 1):
                tensor = tritonclient.http.InferInput("INPUT", [size, 3], "FP32")
                tensor.set_data_from_numpy(np.ones((size, 3), np.float32))
                answers.append(client.async_infer(model, [tensor]))
            for answer in answers:
                answer.get_result()
            time.sleep(random.random() / 10)
