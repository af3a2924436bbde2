"""Whose requests a caller sends: by key, by token, by the header of a trusted proxy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.frontends.access.test_gate import RSA, WallClock, token
from tpy.errors import InvalidArgument, PermissionDenied, Unauthenticated
from tpy.frontends.access import AuthOptions, read_auth
from tpy.frontends.access.config import digest
from tpy.frontends.access.gate import Gate
from tpy.messages import InferenceRequest


class Asked:
    """A model that keeps the requests that it was asked."""

    def __init__(self) -> None:
        self.tenants: list[str] = []

    def submit(self, request: InferenceRequest, sink: object, /) -> Any:
        self.tenants.append(request.tenant)


def gate_of(folder: Path, tenants: dict[str, Any], *, keys: bool = True) -> Gate:
    public = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(RSA.public_key()))
    (folder / "jwks.json").write_text(json.dumps({"keys": [{**public, "kid": "rsa", "alg": "RS256"}]}))
    auth = {
        "keys": [{"name": name, "sha256": digest(f"key-{name}"), "roles": ["infer"]} for name in ("k1", "k2")],
        "jwt": [
            {
                "issuer": "https://issuer",
                "audience": "tpy",
                "jwks": "jwks.json",
                "algorithms": ["RS256"],
                "roles": ["infer"],
            }
        ],
    }
    (folder / "auth.json").write_text(json.dumps(auth))
    (folder / "tenants.json").write_text(json.dumps(tenants))
    file = str(folder / "auth.json") if keys else ""
    return Gate(AuthOptions(file=file, tenants_file=str(folder / "tenants.json")), WallClock())


def test_by_key_by_token_and_by_default(tmp_path: Path) -> None:
    tenants = [{"name": "a", "keys": ["k1"]}, {"name": "b"}, {"name": "rest"}]
    gate = gate_of(tmp_path, {"tenants": tenants, "default": "rest", "token_claim": "team"})
    assert gate.identify(None, "key-k1").tenant == "a"
    assert gate.identify(None, "key-k2").tenant == "rest"
    assert gate.identify(None, None).tenant == "rest"
    for claims, tenant in (({"team": "b"}, "b"), ({"team": "nobody"}, "rest"), ({"team": 3}, "rest"), ({}, "rest")):
        assert gate.identify(f"Bearer {token(**claims)}", None).tenant == tenant


@pytest.mark.parametrize(
    ("peer", "tenant"),
    [
        ("10.1.2.3:999", "b"),
        ("[::ffff:10.1.2.3]:999", "b"),
        ("[fd00::1]:9", "b"),
        ("", "b"),
        ("11.0.0.1:999", "a"),
        ("[fd00::2]:9", "a"),
        ("somewhere:9", "a"),
    ],
)
def test_a_header_counts_from_trusted_proxies_only(tmp_path: Path, peer: str, tenant: str) -> None:
    tenants = [{"name": "a", "keys": ["k1"]}, {"name": "b"}]
    gate = gate_of(tmp_path, {"tenants": tenants, "header": "x-tenant", "trusted_proxies": ["10.0.0.0/8", "fd00::1", "unix"]})
    caller = gate.identify(None, "key-k1")
    assert gate.sent_for(caller, "b", peer).tenant == tenant
    assert gate.sent_for(caller, "b", peer).grant is caller.grant
    assert gate.sent_for(caller, "nobody", peer).tenant == ("" if tenant == "b" else "a")


def test_a_request_of_nobody_is_refused_where_there_is_no_default(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, {"tenants": [{"name": "a", "keys": ["k1"]}]})
    model: Any = Asked()
    gate.identify(None, "key-k1").submit(model, InferenceRequest(model_name="m"), model, 0)
    assert model.tenants == ["a"]
    with pytest.raises(PermissionDenied, match=r"belongs to no known tenant \(--tenants-file\)"):
        gate.identify(None, "key-k2").submit(model, InferenceRequest(model_name="m"), model, 0)


def test_without_access_control_credentials_mean_nothing(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, {"tenants": [{"name": "a"}], "default": "a"}, keys=False)
    for credentials in ((None, None), ("Basic x", None), (None, "anything")):
        caller = gate.identify(*credentials)
        caller.authorize("model-repository", "m", changes=True)
        assert caller.tenant == "a"


def test_tenants_that_the_other_file_does_not_fit_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"tenant 'a' has the key 'k3': expected one of k1, k2"):
        gate_of(tmp_path, {"tenants": [{"name": "a", "keys": ["k3"]}]})
    file = str(tmp_path / "tenants.json")
    with pytest.raises(InvalidArgument, match=r"tenant 'a' has the key 'k3': --auth-config has no keys"):
        read_auth({"auth_config": "", "auth_required": False, "tenants_file": file})


def test_a_wrong_file_of_tenants_keeps_no_key_that_was_taken_away(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, {"tenants": [{"name": "a", "keys": ["k1"]}, {"name": "b", "keys": ["k2"]}]})
    auth = json.loads((tmp_path / "auth.json").read_text())
    (tmp_path / "auth.json").write_text(json.dumps({**auth, "keys": auth["keys"][:1]}))
    with pytest.raises(InvalidArgument, match="tenant 'b' has the key 'k2': expected one of k1"):
        gate.reload()
    with pytest.raises(Unauthenticated):
        gate.identify(None, "key-k2")
    assert gate.identify(None, "key-k1").tenant == "a"


def test_the_file_is_read_again(tmp_path: Path) -> None:
    gate = gate_of(tmp_path, {"tenants": [{"name": "a"}], "default": "a"}, keys=False)
    file = tmp_path / "tenants.json"
    file.write_text('{"tenants": [{"name": "a", "weight": 0}], "default": "a"}')
    with pytest.raises(InvalidArgument, match="weight is 0, expected 1 to 1,000,000"):
        gate.reload()
    assert gate.identify(None, None).tenant == "a"
    file.write_text('{"tenants": [{"name": "b"}], "default": "b"}')
    gate.reload()
    assert gate.identify(None, None).tenant == "b"
