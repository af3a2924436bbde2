"""Policies on request headers: restricted APIs and forwarded headers."""

from __future__ import annotations

import pytest

from tpy.credentials import CREDENTIAL_HEADERS, is_credential
from tpy.errors import InvalidArgument
from tpy.frontends.access import CREDENTIAL_NAMES
from tpy.frontends.http import parse_restricted_apis
from tpy.frontends.restrictions import restricting_headers

from .fakes import FakeServices
from .harness import INFER, get, infer, infer_body, post, running


async def test_restricted_apis_need_their_header() -> None:
    restricted = parse_restricted_apis(["inference,model-repository:X-Key=secret=1", "health:probe=yes"])
    async with running(FakeServices(), restricted=restricted) as server:
        client = await server.connect()
        for request in (infer(1), post("/v2/repository/index", "")):
            answer = await client.ask(request)
            assert (answer.status, answer.error) == (403, "This API is restricted, expecting header 'X-Key'")
        answer = await client.ask(get("/v2/models/m/ready", "Probe: no"))
        assert (answer.status, answer.error) == (403, "This API is restricted, expecting header 'probe'")
        assert (await client.ask(post(INFER, infer_body(1), "x-key: secret=1"))).status == 200
        assert (await client.ask(post("/v2/repository/index", "", "X-Key: secret=1"))).status == 200
        assert (await client.ask(get("/v2/health/live", "Probe: yes"))).status == 200
        assert (await client.ask(get("/v2"))).status == 200


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("inference", "expects"),
        ("inference:key", "expects"),
        ("inferences:k=v", "unknown restricted api 'inferences'"),
        ("trace,trace:k=v", "restricted api 'trace' can not be specified in multiple config groups"),
    ],
)
def test_wrong_restrictions_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint):
        parse_restricted_apis([text])


async def test_matching_headers_become_parameters() -> None:
    services = FakeServices()
    async with running(services, header_forward_pattern="^x-.*|priority|triton_.*") as server:
        client = await server.connect()
        assert (await client.ask(post(INFER, infer_body(1), "X-Tenant: a", "Not-X-This: b"))).status == 200
        assert dict(services.inference.submitted[0].request.parameters) == {"X-Tenant": "a"}
        for header in ("priority", "triton_x"):
            answer = await client.ask(post(INFER, infer_body(1), f"{header}: 1"))
            assert (answer.status, answer.error) == (
                400,
                f"Header '{header}' is reserved for Triton usage and cannot be forwarded.",
            )


async def test_a_pattern_that_is_no_regular_expression_is_refused() -> None:
    with pytest.RaisesGroup(pytest.RaisesExc(InvalidArgument, match="not a regular expression"), flatten_subgroups=True):
        async with running(FakeServices(), header_forward_pattern="("):
            pass


def test_headers_that_open_restricted_apis() -> None:
    values = {
        "http_restricted_api": ("inference,trace:X-Key=a=b", "health: Probe =c"),
        "grpc_restricted_protocol": ("logging:Admin=d",),
        "openai_restricted_api": ("metadata:Team=e",),
    }
    names = ("x-key", "probe", "admin", "team")
    assert restricting_headers(values) == {*names, *[f"triton-grpc-protocol-{name}" for name in names]}


def test_what_the_gate_reads_is_a_credential() -> None:
    assert CREDENTIAL_NAMES <= CREDENTIAL_HEADERS


def test_names_that_are_made_of_words_for_credentials() -> None:
    """Those of providers and proxies that no list has; parameters of models that mention tokens are none."""
    credentials = ("Private-Token", "X-GitLab-Token", "DD-API-Key", "anthropic-api-key", "x-openai-api-key", "Token", "x-jwt")
    proxies = ("X-Goog-IAP-JWT-Assertion", "Cf-Access-JWT-Assertion", "x-ms-token-aad-access-token", "X-Amzn-Oidc-Data")
    assert all(map(is_credential, (*credentials, *proxies, "X-Forwarded-Authorization", "X-Client-Secret", "X-Auth-Key")))
    assert not any(map(is_credential, ("pad_token", "max-tokens", "token_type", "idempotency-key", "x-request-id", "x-team")))
