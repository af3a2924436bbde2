"""Identifying the sender: keys, tokens, and the ways to forge one."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from tpy.errors import InvalidArgument, PermissionDenied, Unauthenticated
from tpy.frontends.access import AuthOptions, read_auth
from tpy.frontends.access.config import digest, key_entry, new_key
from tpy.frontends.access.core.policy import Allowance, Role
from tpy.frontends.access.gate import Gate
from tpy.limits import ACCESS_TOKEN_CHARACTERS_MAX

RSA = rsa.generate_private_key(public_exponent=65537, key_size=2048)
EC = ec.generate_private_key(ec.SECP256R1())
SECRET = bytes(range(32))


class WallClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.wall_s = int(time.time())

    def now_ns(self) -> int:
        return 0

    def wall_ms(self) -> int:
        return self.wall_s * 1000


def _jwk(algorithm: Any, key: Any, **more: str) -> dict[str, Any]:
    return {**json.loads(algorithm.to_jwk(key)), **more}


@pytest.fixture
def clock() -> WallClock:
    return WallClock()


@pytest.fixture
def gate(tmp_path: Path, clock: WallClock) -> Gate:
    """Trusts three keys of one issuer, and two API keys."""
    keys = [
        _jwk(jwt.algorithms.RSAAlgorithm, RSA.public_key(), kid="rsa", alg="RS256"),
        _jwk(jwt.algorithms.ECAlgorithm, EC.public_key(), kid="ec", alg="ES256"),
        {"kty": "oct", "k": base64.urlsafe_b64encode(SECRET).decode().rstrip("="), "kid": "hmac", "alg": "HS256"},
    ]
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": keys}))
    document = {
        "anonymous": ["observe"],
        "keys": [{"name": "a", "sha256": digest("key-a"), "roles": ["infer"], "models": ["x*"], "requests_per_s": 1}],
        "jwt": [
            {
                "issuer": "https://issuer",
                "audience": "tpy",
                "jwks": "jwks.json",
                "algorithms": ["RS256", "ES256", "HS256"],
                "leeway_s": 10,
                "roles_claim": "roles",
            }
        ],
    }
    file = tmp_path / "auth.json"
    file.write_text(json.dumps(document))
    return Gate(AuthOptions(file=str(file)), clock)


def claims(**changed: Any) -> dict[str, Any]:
    good = {"iss": "https://issuer", "aud": "tpy", "sub": "s", "roles": ["infer"], "exp": int(time.time()) + 1000}
    return {name: value for name, value in {**good, **changed}.items() if value is not None}


def token(key: Any = RSA, alg: str = "RS256", kid: str = "rsa", **changed: Any) -> str:
    return jwt.encode(claims(**changed), key, algorithm=alg, headers={"kid": kid})


def test_keys_and_anonymous_callers(gate: Gate) -> None:
    assert gate.identify(None, None).grant.roles == {Role.OBSERVE}
    caller = gate.identify(None, "key-a")
    assert caller is gate.identify("Bearer key-a", None) is gate.identify("bearer  key-a ", "key-a")
    caller.require({Role.INFER}, "x1")
    for roles, model in (({Role.INFER}, "y"), ({Role.MANAGE}, "x1"), ({Role.INFER}, None)):
        with pytest.raises(PermissionDenied, match="'a' has no role"):
            caller.require(roles, model)
    with pytest.raises(Unauthenticated, match="expected an API key or a token"):
        gate.identify(None, None).require({Role.INFER}, "x1")


@pytest.mark.parametrize(
    ("authorization", "key"),
    [
        (None, ""),
        (None, "key-b"),
        (None, digest("key-a")),
        (None, "key-a, key-a"),
        ("Basic key-a", None),
        ("Bearer", None),
        ("Bearer key-a", "key-b"),
        ("Bearer key-b", "key-a"),
        ("Bearer key-a, Bearer key-a", None),
        ("Bearer " + "x" * (ACCESS_TOKEN_CHARACTERS_MAX + 1), None),
        ("Bearer \xff.\xff.\xff", None),
        ("Bearer ..", None),
    ],
)
def test_wrong_credentials_are_refused_where_none_would_do(gate: Gate, authorization: str | None, key: str | None) -> None:
    with pytest.raises(Unauthenticated) as refused:
        gate.identify(authorization, key)
    assert "key-" not in refused.value.message


@pytest.mark.parametrize(("key", "alg", "kid"), [(RSA, "RS256", "rsa"), (EC, "ES256", "ec"), (SECRET, "HS256", "hmac")])
def test_tokens(gate: Gate, key: Any, alg: str, kid: str) -> None:
    text = token(key, alg, kid)
    caller = gate.identify(f"Bearer {text}", None)
    assert (caller.name, caller.grant.roles) == ("s", {Role.INFER})
    assert gate.identify(f"Bearer {text}", None) is caller


def _none() -> str:
    return jwt.encode(claims(), None, algorithm="none", headers={"kid": "rsa"})


def _public_key_as_secret() -> str:
    """The confusion of algorithms: a public RSA key as the secret of an HMAC. PyJWT itself refuses to make one."""
    secret = RSA.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    part = lambda document: base64.urlsafe_b64encode(json.dumps(document).encode()).rstrip(b"=")  # noqa: E731
    signed = part({"alg": "HS256", "kid": "rsa", "typ": "JWT"}) + b"." + part(claims())
    return (signed + b"." + base64.urlsafe_b64encode(hmac.digest(secret, signed, hashlib.sha256)).rstrip(b"=")).decode()


def _changed() -> str:
    head, _, signature = token().split(".")
    body = base64.urlsafe_b64encode(json.dumps(claims(roles=["manage"])).encode()).rstrip(b"=").decode()
    return f"{head}.{body}.{signature}"


@pytest.mark.parametrize(
    "forged",
    [
        _none,
        _public_key_as_secret,
        _changed,
        lambda: token(rsa.generate_private_key(public_exponent=65537, key_size=2048)),
        lambda: token(RSA, "RS512"),
        lambda: token(RSA, "PS256"),
        lambda: token(SECRET, "HS256", "rsa"),
        lambda: token(kid="other"),
        lambda: token(iss="https://other"),
        lambda: token(iss=None),
        lambda: token(aud="other"),
        lambda: token(aud=None),
        lambda: token(exp=None),
        lambda: token(exp=1000),
        lambda: token(nbf=2**40),
    ],
)
def test_forged_tokens(gate: Gate, forged: Callable[[], str]) -> None:
    with pytest.raises(Unauthenticated):
        gate.identify(f"Bearer {forged()}", None)


def test_a_remembered_token_expires(gate: Gate, clock: WallClock) -> None:
    expires_s = claims()["exp"]
    bearer = f"Bearer {token(exp=expires_s)}"
    gate.identify(bearer, None)
    clock.wall_s = expires_s + 9
    gate.identify(bearer, None)
    clock.wall_s = expires_s + 10
    with pytest.raises(Unauthenticated, match="has expired"):
        gate.identify(bearer, None)


def test_a_reload_takes_keys_away_and_keeps_rates(gate: Gate) -> None:
    caller = gate.identify(None, "key-a")
    assert caller.allowance is not None
    caller.allowance.begin(0)
    bearer = f"Bearer {token()}"
    gate.identify(bearer, None)
    gate.reload()
    again = gate.identify(None, "key-a")
    assert again is not caller
    assert again.allowance is caller.allowance
    file = Path(gate.options.file)
    file.write_text("{")
    with pytest.raises(InvalidArgument):
        gate.reload()
    gate.identify(None, "key-a")
    file.write_text("{}")
    gate.reload()
    for authorization, key in ((None, "key-a"), (bearer, None)):
        with pytest.raises(Unauthenticated):
            gate.identify(authorization, key)


def test_a_reload_changes_the_rates_of_tokens(gate: Gate) -> None:
    file = Path(gate.options.file)

    def limited(per_s: int) -> Allowance | None:
        document = json.loads(file.read_text())
        document["jwt"][0]["requests_per_s"] = per_s
        file.write_text(json.dumps(document))
        gate.reload()
        return gate.identify(f"Bearer {token()}", None).allowance

    slow = limited(1)
    assert slow is not None
    assert limited(1) is slow, "reading the file again is no way to a full bucket"
    slow.begin(0)
    assert slow.begin(0) is not None
    fast = limited(5)
    assert fast is not None
    assert fast is not slow
    assert [fast.begin(0) is None for _ in range(6)] == [True] * 5 + [False]


def test_required_leaves_anonymous_callers_nothing(gate: Gate, clock: WallClock) -> None:
    strict = Gate(AuthOptions(file=gate.options.file, required=True), clock)
    assert not strict.identify(None, None).grant.roles
    assert strict.identify(None, "key-a").grant.roles


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("keys = 3", r"Expected `array`, got `int` - at `\$.keys`"),
        ("{", "neither TOML nor JSON"),
        ("[[keys]]\nname='a'\nsha256='secret'\nroles=['infer']", r"\$.keys\[0\].sha256`; `tpy auth-key` makes"),
        (
            f"[[keys]]\nname='a'\nsha256='{digest('k')}'\nroles=['secret']",
            r"Expected one of infer, manage, observe - at `\$.keys\[0\].roles\[0\]",
        ),
        ("anonymus = []", "unknown field `anonymus`"),
        (key_entry("a", digest("1"), ["infer"], ["*"]) + "\n" + key_entry("a", digest("2"), [], []), "different names of keys"),
        ("[[jwt]]\nissuer='i'\naudience='a'\njwks='none.json'\nalgorithms=['RS256']", "jwks: cannot read"),
        ("[[jwt]]\nissuer='i'\naudience='a'\njwks='auth.toml'\nalgorithms=['RS256']", "jwks: expected a JWK set"),
        (
            "[[jwt]]\nissuer='i'\naudience='a'\njwks='none.json'\nalgorithms=['none']",
            r"Expected one of RS256, .*, HS512 - at `\$.jwt\[0\].algorithms",
        ),
    ],
)
def test_wrong_files_are_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "auth.toml"
    file.write_text(text)
    with pytest.raises(InvalidArgument, match=complaint) as refused:
        read_auth({"auth_config": str(file), "auth_required": False, "tenants_file": ""})
    assert refused.value.message.startswith("--auth-config: ")
    assert "\n" not in refused.value.message
    assert "secret" not in refused.value.message


def test_required_needs_a_file() -> None:
    with pytest.raises(InvalidArgument, match=r"--auth-required: .* --auth-config FILE"):
        read_auth({"auth_config": "", "auth_required": True, "tenants_file": ""})


def test_new_keys_are_long() -> None:
    assert len({new_key() for _ in range(10)}) == 10
    assert len(new_key()) >= 40
