"""Requests to models that the routes make."""

from __future__ import annotations

import json

import trio

from tests.frontends.http.fakes import FakeServices
from tests.frontends.openai.test_models import PLAIN
from tpy.clock import SystemClock
from tpy.frontends.http.message import HttpRequest, fields_of
from tpy.frontends.http.options import HttpOptions
from tpy.frontends.http.serving import create_endpoint
from tpy_platforms.openai.api import OpenAiApi


async def test_prompts_share_their_settings_and_headers() -> None:
    """A request of few bytes must not make a copy of all settings for each of 2,048 prompts."""
    services = FakeServices()
    services.inference.immediate = False
    services.inference.models["writer"] = PLAIN
    options = HttpOptions(address="127.0.0.1", port=0, header_forward_pattern="x-.*")
    api = OpenAiApi(create_endpoint(options, services, SystemClock()), template=None, max_tokens=9, tool_call_parser="")
    document = {"model": "writer", "prompt": ["a", "b", "c"], "temperature": 0.5}
    headers = [(b"x-team", b"red"), (b"accept", b"*/*")]
    request = HttpRequest(
        method=b"POST",
        target=b"/v1/completions",
        path="/v1/completions",
        version="1.1",
        headers=headers,
        fields=fields_of(headers),
        keep_alive=True,
        body=json.dumps(document).encode(),
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(api.completions, request)
        await services.inference.wait_submitted(3)
        nursery.cancel_scope.cancel()
    given = [submitted.request.parameters for submitted in services.inference.submitted]
    assert given[0] == {"temperature": 0.5, "max_tokens": 9, "x-team": "red"}
    assert all(parameters is given[0] for parameters in given)
