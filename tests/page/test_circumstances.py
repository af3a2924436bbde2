"""The page under other circumstances: keys, a server that restarts, a thousand models, a phone, the dark, hostile names."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import ServerProcess
from tpy.frontends.access.config import digest, key_entry

from .conftest import Tab, page_of

expect = pytest.importorskip("playwright.sync_api", reason="the tests of the page need Playwright: make test-page").expect

MODELS = 1000
REFUSED = "Failed to load resource: the server responded with a status of [45]0[0-9]"


def test_keys(tab: Tab, tmp_path: Path) -> None:
    ModelFolder(tmp_path / "models", "affine").config(AFFINE_CONFIG).affine(1, 2)
    entries = [
        key_entry(name, digest(f"key-of-{name}"), roles, ["*"])
        for name, roles in {"all": ["infer", "observe", "manage"], "looks": ["observe"]}.items()
    ]
    (tmp_path / "auth.toml").write_text("\n".join(entries))
    tab.expected.append(REFUSED)
    flags = ("--management-address=127.0.0.1:0", f"--auth-config={tmp_path / 'auth.toml'}", "--auth-required=true")
    with ServerProcess(*flags, repositories=[tmp_path / "models"]) as server:
        page: Any = tab.page
        page.goto(page_of(server))
        dialog = page.get_by_role("dialog")
        expect(dialog).to_be_visible()
        page.get_by_label("API key or token").fill("a wrong one")
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).to_contain_text("the API key is not known here")
        expect(dialog).to_be_visible()
        page.get_by_label("API key or token").fill("key-of-looks")
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(1)
        page.get_by_role("link", name="affine").click()
        page.get_by_role("textbox", name="Values of INPUT").fill("1, 2, 3")
        page.get_by_role("button", name="Run").click()
        expect(page.locator(".try-it .result")).to_contain_text("'looks' has no role 'infer'")
        page.get_by_role("button", name="Unload").click()
        expect(page.locator(".result").first).to_contain_text("'looks' has no role 'manage'")
        page.get_by_role("button", name="Key").click()
        page.get_by_label("API key or token").fill("key-of-all")
        page.get_by_role("button", name="Use", exact=True).click()
        expect(page.locator(".try-it .result")).to_be_hidden()  # the form is another one, with the values that were typed
        expect(page.get_by_role("textbox", name="Values of INPUT")).to_have_value("1, 2, 3")
        page.get_by_role("button", name="Run").click()
        expect(page.locator(".outputs td")).to_have_text(["2", "4", "6"])
        expect(page.locator(".codes")).to_contain_text("$TPY_KEY")
        assert "key-of" not in page.locator("main").inner_text()
        assert "key-of" not in page.url
        page.get_by_role("button", name="Unload").click()
        expect(page.locator(".result").first).to_contain_text("explicit model load / unload is not allowed")
        assert "key-of" not in server.log
        page.goto("about:blank")


def test_a_server_that_restarts(tab: Tab, tmp_path: Path) -> None:
    ModelFolder(tmp_path, "affine").config(AFFINE_CONFIG).affine(1, 2)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    tab.expected.append("net::ERR_")
    page: Any = tab.page
    flag = f"--management-address=127.0.0.1:{port}"
    with ServerProcess(flag, repositories=[tmp_path]) as server:
        page.goto(page_of(server))
        expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("#connection")).to_have_text("not connected")
    expect(page.locator("#notice")).to_be_visible()
    ModelFolder(tmp_path, "newer").config(AFFINE_CONFIG).affine(1, 2)
    with ServerProcess(flag, repositories=[tmp_path]):
        expect(page.locator("tbody tr")).to_have_count(2, timeout=20_000)
        expect(page.locator("#connection")).to_have_text("ready")
        expect(page.locator("#notice")).to_be_hidden()
        page.goto("about:blank")


def test_a_thousand_models(tab: Tab, tmp_path: Path) -> None:
    for number in range(MODELS):
        ModelFolder(tmp_path, f"model-{number:04}").identity()
    with ServerProcess("--page-on-http=true", repositories=[tmp_path]) as server:
        page: Any = tab.page
        page.goto(f"http://{server.http}/page/")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(MODELS)
        page.locator("#filter").fill("model-09 7")
        expect(rows).to_have_count(19)  # 0907, 0917, ..., 097x
        page.locator("#filter").fill("")
        page.get_by_role("button", name="Model").click()
        expect(rows.first).to_contain_text("model-0999")
        page.goto("about:blank")


def test_a_phone_in_the_dark(tab: Tab, server: ServerProcess) -> None:
    page: Any = tab.page
    page.set_viewport_size({"width": 360, "height": 700})
    page.emulate_media(color_scheme="dark")
    for view in ("", "#/models/affine", "#/log", "#/traces", "#/recording"):
        page.goto("about:blank")
        page.goto(page_of(server) + view)
        expect(page.locator("#connection")).to_have_text("ready")
        width = page.evaluate("document.documentElement.scrollWidth")
        assert width <= 360, (view, width)
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 28)"


def test_names_are_no_html(tab: Tab, tmp_path: Path) -> None:
    name = "<img src=x onerror=document.title='hurt'>"
    ModelFolder(tmp_path, name).config(AFFINE_CONFIG).file("1/model.onnx", b"")
    with ServerProcess("--page-on-http=true", "--exit-on-error=false", repositories=[tmp_path]) as server:
        page: Any = tab.page
        page.goto(f"http://{server.http}/page/")
        page.get_by_role("link", name=name).click()
        expect(page.locator("h1")).to_have_text(name)
        assert page.locator("main img").count() == 0
        assert "hurt" not in page.title().replace(name, "")
        page.goto("about:blank")
