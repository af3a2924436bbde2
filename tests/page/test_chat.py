"""A chat with a language model on its page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.openai_engine import add_engine
from tests.e2e.repositories import ModelFolder
from tests.e2e.server import ServerProcess

from .conftest import Tab

expect = pytest.importorskip("playwright.sync_api", reason="the tests of the page need Playwright: make test-page").expect

MESSAGES_CONFIG = """
backend: "python"
input [ { name: "messages" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] } ]
model_transaction_policy { decoupled: true }
"""
ENDLESS = """
import threading
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            [messages] = pb_utils.get_input_tensor_by_name(request, "messages").as_numpy()
            threading.Thread(target=self.write, args=(request.get_response_sender(), messages), daemon=True).start()

    def write(self, sender, messages):
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([messages], object))]))
        pause = threading.Event()
        while not sender.is_cancelled():
            pause.wait(0.01)
        sender.send(flags=1)
"""


def test_a_chat(tab: Tab, tmp_path: Path) -> None:
    add_engine(tmp_path, "engine")
    ModelFolder(tmp_path, "endless").config(MESSAGES_CONFIG).python(ENDLESS)
    page: Any = tab.page
    with ServerProcess("--page-on-http=true", repositories=[tmp_path]) as server:
        page.goto(f"http://{server.http}/page/#/models/engine")
        chat = page.locator(".chat")
        chat.get_by_label("Tokens at most").fill("4")
        prompt = chat.get_by_label("Prompt")
        prompt.fill("Is <b>it</b> so?")
        prompt.press("Enter")
        expect(chat.locator(".transcript p")).to_have_text(["Is <b>it</b> so?", "Is <b>it</b>"])
        expect(chat.locator(".result")).to_contain_text("4 tokens in")
        expect(chat.locator(".result")).to_contain_text("First token after")
        prompt.fill("settings")
        chat.get_by_role("button", name="Send").click()
        expect(chat.locator(".assistant").nth(1)).to_have_text('{"max_tokens')
        chat.get_by_role("button", name="Clear").click()
        expect(chat.locator(".transcript p")).to_have_count(0)

        page.goto(f"http://{server.http}/page/#/models/endless")
        message = chat.get_by_label("Message")
        for at, text in enumerate(("Hello!", "And now?")):
            message.fill(text)
            message.press("Enter")
            expect(chat.locator(".assistant")).to_have_count(at + 1)
            expect(chat.locator(".assistant").nth(at)).to_contain_text(text)
            chat.get_by_role("button", name="Stop").click()
            expect(chat.locator(".result")).to_have_text("Stopped.")
        first, second = (json.loads(text) for text in chat.locator(".assistant").all_inner_texts())
        assert second == [
            *first,
            {"role": "assistant", "content": json.dumps(first, separators=(",", ":"))},
            {"role": "user", "content": "And now?"},
        ]
        page.goto("about:blank")
