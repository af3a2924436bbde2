"""A model's page in Chromium: files by drag and drop, versions, configuration, labels, percentiles, failures, the keyboard."""

from __future__ import annotations

import base64
import io
import json
import math
import re
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
from PIL import Image

from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess

from .conftest import Tab, page_of
from .test_page import ask, opened

expect = pytest.importorskip("playwright.sync_api", reason="the tests of the page need Playwright: make test-page").expect

DROP = """([text, name, type]) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const data = new DataTransfer();
    data.items.add(new File([bytes], name, { type }));
    return data;
}"""


def drop(page: Any, target: Any, content: bytes, name: str, kind: str) -> None:
    """Drop a file onto an element, as a file manager does."""
    data = page.evaluate_handle(DROP, [base64.b64encode(content).decode(), name, kind])
    target.dispatch_event("dragover", {"dataTransfer": data})
    expect(target).to_have_class("input over")
    target.dispatch_event("drop", {"dataTransfer": data})


def tone(rate: int, seconds: float) -> bytes:
    """A WAV file: 440 Hz in two channels, of which the second is silent."""
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setnchannels(2)
        sound.setsampwidth(2)
        sound.setframerate(rate)
        for at in range(round(rate * seconds)):
            sound.writeframes(struct.pack("<hh", round(16000 * math.sin(2 * math.pi * 440 * at / rate)), 0))
    return file.getvalue()


def values(page: Any) -> list[float]:
    return [float(text) for text in page.locator(".outputs td").all_inner_texts()]


def test_a_picture_is_dropped_and_prepared_as_the_model_declares(tab: Tab, server: ServerProcess) -> None:
    picture = Image.new("RGB", (400, 100), (255, 255, 255))
    picture.paste((255, 0, 0), (100, 0, 300, 100))  # the middle half, which is all that the input's shape leaves
    file = io.BytesIO()
    picture.save(file, "PNG")
    page = opened(tab, server, "#/models/declared")
    field = page.locator("fieldset.input")
    expect(field).to_contain_text("as the model declares")
    expect(page.get_by_label("Range of pixels")).to_have_value("-1 to 1")
    expect(page.get_by_label("Order of colours")).to_have_value("BGR")
    drop(page, field, file.getvalue(), "red.png", "image/png")
    expect(page.locator(".preview")).to_contain_text("red.png, 400 × 100, drawn to 10 × 5, its middle, cropped")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".outputs canvas")).to_be_visible()
    page.get_by_text("Values", exact=True).last.click()
    assert values(page) == [-1.0, -1.0, 1.0] * 50
    page.get_by_label("Resizing").select_option("fit")
    page.get_by_role("button", name="Remove").click()
    drop(page, field, file.getvalue(), "red.png", "image/png")
    expect(page.locator(".preview")).to_contain_text("whole, with black borders")


def test_sound_is_resampled_and_mixed(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/sound")
    expect(page.get_by_label("Samples a second")).to_have_value("8000")
    drop(page, page.locator("fieldset.input"), tone(16000, 0.005), "tone.wav", "audio/wav")
    expect(page.locator(".preview")).to_contain_text("tone.wav: 0.01 s, 40 samples at 8000 a second")
    expect(page.get_by_role("textbox", name="Shape of INPUT0")).to_have_value("40")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".outputs td")).to_have_count(40)
    expected = [0.25 * math.sin(2 * math.pi * 440 * at / 8000) for at in range(40)]
    assert max(abs(found - wanted) for found, wanted in zip(values(page)[5:35], expected[5:35], strict=True)) < 0.03
    drop(page, page.locator("fieldset.input"), b"no sound", "broken.wav", "audio/wav")
    expect(page.locator(".input .reason")).to_contain_text("broken.wav: ")


def test_a_file_is_dropped(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/words")
    drop(page, page.locator("fieldset.input"), b"from a file", "words.txt", "text/plain")
    expect(page.locator(".preview")).to_contain_text("words.txt, 11 bytes")


def test_single_versions_are_served_and_stopped(tab: Tab, server: ServerProcess) -> None:
    tab.expected.append("status of 400")  # questions after a version that was on its way when it was stopped
    page = opened(tab, server, "#/models/affine")
    folders = page.locator(".version-list tbody tr")
    states = folders.locator(".state")
    expect(states).to_have_text(["ready", "ready"])
    folders.first.get_by_role("button", name="Stop version 2").click()
    expect(states).to_have_text(["not loaded", "ready"])
    expect(page.locator(".version-list .result")).to_have_text("Stop: version 2.")
    expect(page.get_by_role("button", name="Serve version 2", exact=True)).to_be_focused()
    page.get_by_role("button", name="Serve only version 2").click()
    expect(states).to_have_text(["ready", "not loaded"])
    page.get_by_role("button", name="Serve version 1", exact=True).click()
    expect(states).to_have_text(["ready", "ready"])


def test_a_configuration_is_changed_checked_and_loaded(tab: Tab, server: ServerProcess) -> None:
    tab.expected.append("status of 400")
    page = opened(tab, server, "#/models/sound")
    page.get_by_text("Change the configuration").click()
    text = page.get_by_role("textbox", name="Configuration", exact=True)
    expect(text).not_to_have_value("")
    before = text.input_value()
    line = next(number for number, each in enumerate(before.split("\n"), 1) if '"max_batch_size"' in each)
    text.fill(before.replace('"max_batch_size": 0', '"max_batch_size": -3').replace('"TYPE_FP32"', '"TYPE_FP31"', 1))
    page.get_by_role("button", name="Validate").click()
    problems = page.locator(".problems li")
    expect(problems).to_have_count(1)
    expect(problems).to_contain_text("input[0].data_type")
    text.fill(before.replace('"max_batch_size": 0', '"max_batch_size": -3'))
    page.get_by_role("button", name="Load with it").click()
    expect(page.locator(".editor .result")).to_have_text("There is an error.")
    expect(problems).to_contain_text("max_batch_size")
    page.get_by_role("button", name=f"line {line}", exact=True).click()
    chosen = text.evaluate("(element) => element.value.slice(element.selectionStart, element.selectionEnd)")
    assert chosen.strip() == '"max_batch_size": -3,'
    text.fill(before.replace('"max_batch_size": 0', '"max_batch_size": 4'))
    page.get_by_role("button", name="Validate").click()
    expect(page.locator(".editor .result")).to_have_text("It is valid, and selects version 1.")
    page.get_by_role("button", name="Load with it").click()
    expect(page.locator(".editor .result")).to_have_text("Loaded with it.")
    page.reload()
    expect(page.locator(".tree")).to_contain_text("max_batch_size 4")
    page.get_by_text("Change the configuration").click()
    page.get_by_role("button", name="As in the repository").click()
    expect(page.locator(".editor .result")).to_have_text("As config.pbtxt says.")
    expect(text).to_have_value(re.compile('string_value: "rate=8000"'))
    page.get_by_role("button", name="Load with it").click()
    expect(page.locator(".editor .result")).to_have_text("Loaded with it.")


def test_labels_are_shown(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/labels")
    page.get_by_text("animals.txt").first.click()
    expect(page.locator(".labels li")).to_have_text(["cat", "dog", "<b>bird</b>"])
    page.get_by_label("Classes").fill("2")
    page.get_by_role("textbox", name="Values of INPUT0").fill("1, 3, 2")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".outputs td")).to_have_text(["3.000000:1:dog", "2.000000:2:<b>bird</b>"])


def test_percentiles_are_drawn(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/models/affine")
    chart = page.get_by_role("img", name="Latency, percentiles of 10 s: p50")
    expect(chart).to_be_visible()
    expect(page.locator(".timeline")).to_be_attached()  # it has been explained, from now on latencies are kept
    ask(server, "affine", 1)
    expect(chart).to_have_attribute("aria-label", re.compile(r"p50 [\d.]+ .s, p90 [\d.]+ .s, p99 [\d.]+ .?s"))


def test_a_model_that_fails(tab: Tab, server: ServerProcess) -> None:
    tab.expected.append("status of 500")
    page = opened(tab, server, "#/models/fails")
    page.get_by_role("textbox", name="Values of TEXT").fill("x")
    page.get_by_role("button", name="Run").click()
    expect(page.locator(".try-it .result")).to_contain_text("division of the indivisible")
    expect(page.locator(".totals")).to_contain_text("1 failures")


def test_traces_are_waterfalls(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server, "#/traces")
    expect(page.locator(".empty")).to_contain_text("switch TIMESTAMPS on above")
    page.get_by_label("TIMESTAMPS").check()
    page.locator("input[name=trace_rate]").fill("1")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator(".result").first).to_have_text("Applied.")
    ask(server, "affine", 0.1)
    page.locator(".traces tbody button").first.click()
    expect(page.locator(".waterfall .phase.infer")).to_have_count(1)
    expect(page.locator(".waterfall .phase.queue title")).to_contain_text("affine: queue")
    page.get_by_text("Times", exact=True).click()
    expect(page.get_by_label("Waterfall").locator("table")).to_contain_text("infer ")
    page.locator("#filter").fill("no such model")
    expect(page.locator(".traces tbody tr:visible")).to_have_count(0)
    page.get_by_label("TIMESTAMPS").uncheck()
    page.locator("input[name=trace_rate]").fill("1000")
    page.get_by_role("button", name="Apply").click()
    expect(page.locator(".result").first).to_have_text("Applied.")


def test_all_of_it_with_the_keyboard(tab: Tab, server: ServerProcess) -> None:
    page = opened(tab, server)
    expect(page.locator("tbody tr").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("/")
    page.keyboard.type("labels")
    expect(page.locator("tbody tr")).to_have_count(1)
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent"))
        if "labels" in reached:
            break
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("labels")
    field = page.get_by_role("textbox", name="Values of INPUT0")
    field.focus()
    page.keyboard.press("Control+A")
    page.keyboard.type("4 5 6")
    for _ in range(20):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Run":
            break
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.keyboard.press("Enter")
    expect(page.locator(".outputs td")).to_have_text(["4", "5", "6"])
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select, textarea, a')]"
        ".filter((e) => !(e.textContent.trim() || e.ariaLabel || e.labels?.length || e.placeholder)).map((e) => e.outerHTML)"
    )
    assert unnamed == []


PLAN = '{"steps": [{"percent": 25, "seconds": 3600}]}'
ROLLED_CONFIG = f"""
backend: "identity"
input [ {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
output [ {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] }} ]
version_policy {{ latest {{ num_versions: 2 }} }}
parameters {{ key: "rollout" value {{ string_value: {json.dumps(PLAN)} }} }}
"""


def test_a_rollout_is_watched_and_ended(tab: Tab, tmp_path: Path) -> None:
    model = ModelFolder(tmp_path / "models", "rolled").config(ROLLED_CONFIG)
    (model.path / "1").mkdir()
    flags = ("--management-address=127.0.0.1:0", "--model-control-mode=explicit", "--load-model=rolled")
    with ServerProcess(*flags, repositories=[model.path.parent]) as server:
        page = opened(tab, server, "#/models/rolled")
        expect(page.get_by_role("region", name="Instances")).to_be_visible()
        section = page.get_by_role("region", name="Rollout")
        expect(section).to_be_hidden()
        (model.path / "2").mkdir()
        page.get_by_role("button", name="Load", exact=True).click()
        expect(section.locator("p").first).to_have_text("Version 2 gets 25 % of the requests without a version, in step 1 of 1.")
        expect(section.locator("td")).to_have_text(["1", "75 %", "0", "0", "–", "2", "25 %", "0", "0", "–"])
        plan = "25 % for 3,600 s; 100 requests or more in each step; at most 1 % of them may fail."
        expect(section.locator(".note").first).to_have_text(f"The plan, of the model's parameter: {plan}")
        with tritonclient.http.InferenceServerClient(server.http) as client:
            given = tritonclient.http.InferInput("INPUT0", [1], "INT32")
            given.set_data_from_numpy(np.array([1], np.int32))
            for _ in range(4):
                client.infer("rolled", [given])
        expect(section.locator("td:nth-child(3)")).to_have_text(["3", "1"])
        section.get_by_role("button", name="Roll back").click()
        expect(section.locator("p").first).to_have_text("Version 2 is rolled back, version 1 gets all requests: as asked")
        section.get_by_role("button", name="Start again").click()
        expect(section.locator("td:nth-child(2)")).to_have_text(["75 %", "25 %"])
        section.get_by_role("button", name="Promote").click()
        expect(section).to_be_hidden()
        page.goto("about:blank")  # it asks the server again and again


def test_a_page_that_names_no_model(tab: Tab, server: ServerProcess) -> None:
    tab.expected.append("status of 400")
    page = opened(tab, server, "#/models/nowhere")
    expect(page.locator(".totals")).to_have_text("There is no model of this name.")
    assert page_of(server) in page.url
