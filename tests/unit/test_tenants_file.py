"""The file of --tenants-file: each thing that may be wrong in it is named, with what was expected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tpy.errors import InvalidArgument
from tpy.tenants import TenantRules, TenantsConfig, read_tenants, require_keys

WHOLE = """
default = "others"
header = "x-tenant"
trusted_proxies = ["10.0.0.0/8", "::1", "unix"]
token_claim = "team"
priority_ageing_s = 2

[[tenants]]
name = "search"
keys = ["search-1", "search-2"]
weight = 3
concurrency = 16
requests_per_s = 0.5
burst = 2
queue_requests = 100
queue_bytes = 1000

[[tenants]]
name = "others"
"""


def read(folder: Path, text: str, name: str = "tenants.toml") -> TenantsConfig:
    (folder / name).write_text(text)
    return read_tenants(str(folder / name))


def test_the_whole_file(tmp_path: Path) -> None:
    config = read(tmp_path, WHOLE)
    assert config == TenantsConfig(
        tenants=(
            TenantRules(
                name="search",
                keys=("search-1", "search-2"),
                weight=3,
                concurrency=16,
                requests_per_s=0.5,
                burst=2,
                queue_requests=100,
                queue_bytes=1000,
            ),
            TenantRules(name="others"),
        ),
        default="others",
        header="x-tenant",
        trusted_proxies=("10.0.0.0/8", "::1", "unix"),
        token_claim="team",
        priority_ageing_s=2.0,
    )
    assert config.ageing_ns == 2_000_000_000
    assert read(tmp_path, json.dumps({"tenants": [{"name": "a"}]}), "tenants.json").tenants == (TenantRules(name="a"),)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"tenants": []}, "expected 1 to 256 tenants, got 0"),
        ({"tenants": [{"name": "a", "wieght": 1}]}, "Object contains unknown field `wieght` - at `$.tenants[0]`"),
        ({"tenants": [{"name": "a"}], "fallback": "a"}, "Object contains unknown field `fallback`"),
        ({"tenants": [{}]}, "Object missing required field `name` - at `$.tenants[0]`"),
        ({"tenants": [{"name": "a", "weight": 0}]}, "tenant 'a': weight is 0, expected 1 to 1,000,000"),
        ({"tenants": [{"name": "a", "weight": -2}]}, "tenant 'a': weight is -2, expected 1 to 1,000,000"),
        ({"tenants": [{"name": "a", "weight": 0.5}]}, "Expected `int`, got `float` - at `$.tenants[0].weight`"),
        ({"tenants": [{"name": "a", "concurrency": 0}]}, "tenant 'a': concurrency is 0, expected 1 to 1,000,000,000,000,000"),
        (
            {"tenants": [{"name": "a", "queue_requests": 0}]},
            "tenant 'a': queue_requests is 0, expected 1 to 1,000,000,000,000,000",
        ),
        ({"tenants": [{"name": "a", "queue_bytes": -1}]}, "tenant 'a': queue_bytes is -1, expected 1 to 1,000,000,000,000,000"),
        (
            {"tenants": [{"name": "a", "requests_per_s": 0}]},
            "tenant 'a': requests_per_s is 0, expected 0.000001 to 1,000,000,000",
        ),
        ({"tenants": [{"name": "a", "requests_per_s": 1e-300}]}, "tenant 'a': requests_per_s is 1e-300, expected 0.000001 to"),
        ({"tenants": [{"name": "a", "burst": 3}]}, "tenant 'a': burst is 3 and requests_per_s is missing, expected both"),
        ({"tenants": [{"name": "a"}, {"name": "a"}]}, "two tenants are named 'a'"),
        ({"tenants": [{"name": "other"}]}, "tenant 'other': expected a name of letters, digits, '_', '.' and '-'"),
        ({"tenants": [{"name": "a b"}]}, "tenant 'a b': expected a name of letters"),
        (
            {"tenants": [{"name": "a", "keys": ["k"]}, {"name": "b", "keys": ["k"]}]},
            "the key 'k' is of several tenants: a, b",
        ),
        ({"tenants": [{"name": "a"}], "default": "b"}, "default is 'b', which is not a tenant; expected one of a"),
        ({"tenants": [{"name": "a"}], "header": "x-tenant"}, "expected header and trusted_proxies together"),
        ({"tenants": [{"name": "a"}], "trusted_proxies": ["10.0.0.1"]}, "expected header and trusted_proxies together"),
        ({"tenants": [{"name": "a"}], "header": "X Tenant", "trusted_proxies": ["unix"]}, "header is 'X Tenant'"),
        (
            {"tenants": [{"name": "a"}], "header": "x-t", "trusted_proxies": ["10.0.0.1/8"]},
            "trusted_proxies has '10.0.0.1/8', expected an address, a network such as 10.0.0.0/8, or unix",
        ),
        ({"tenants": [{"name": "a"}], "priority_ageing_s": 0}, "priority_ageing_s is 0, expected more than 0"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, wrong: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        read(tmp_path, json.dumps(wrong), "tenants.json")
    assert f"--tenants-file: '{tmp_path}/tenants.json': {said}" in refusal.value.message


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"weight is 0.*default is 'b'"):
        read(tmp_path, '{"tenants": [{"name": "a", "weight": 0}], "default": "b"}', "tenants.json")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"cannot read '.*none.toml': No such file or directory; expected a file in TOML"):
        read_tenants(str(tmp_path / "none.toml"))
    with pytest.raises(InvalidArgument, match="is neither TOML nor JSON"):
        read(tmp_path, "tenants = [")
    with pytest.raises(InvalidArgument, match="expected at most 4194304"):
        read(tmp_path, "#" * 4_194_305)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("requests_per_s = nan", "tenant 'a': requests_per_s is nan, expected 0.000001 to 1,000,000,000"),
        ("requests_per_s = inf", "tenant 'a': requests_per_s is inf, expected 0.000001 to 1,000,000,000"),
        (f"weight = {10**30}", f"tenant 'a': weight is {10**30}, expected 1 to 1,000,000"),
        (f"queue_bytes = {10**30}", f"tenant 'a': queue_bytes is {10**30}, expected 1 to 1,000,000,000,000,000"),
        (f"weight = {'1' * 5000}", "is neither TOML nor JSON: Exceeds the limit"),
        (f"keys = {'[' * 100_000}", "is neither TOML nor JSON: "),
    ],
    ids=["nan", "inf", "weight", "bytes", "digits", "nested"],
)
def test_what_toml_may_say_and_json_may_not(tmp_path: Path, field: str, said: str) -> None:
    with pytest.raises(InvalidArgument) as refusal:
        read(tmp_path, f"[[tenants]]\nname = 'a'\n{field}\n")
    assert f"--tenants-file: '{tmp_path}/tenants.toml'" in refusal.value.message
    assert said in refusal.value.message


def test_keys_and_claims_are_those_of_the_other_file() -> None:
    config = TenantsConfig(tenants=(TenantRules(name="a", keys=("k1", "k2")),))
    require_keys(config, "t", {"k1", "k2", "k3"}, tokens=False)
    with pytest.raises(InvalidArgument, match="tenant 'a' has the key 'k2': expected one of k1, k3"):
        require_keys(config, "t", {"k1", "k3"}, tokens=False)
    with pytest.raises(InvalidArgument, match="tenant 'a' has the key 'k2': --auth-config has no keys"):
        require_keys(config, "t", (), tokens=False)
    claim = TenantsConfig(tenants=(TenantRules(name="a"),), token_claim="team")
    require_keys(claim, "t", (), tokens=True)
    with pytest.raises(InvalidArgument, match="token_claim is 'team', but --auth-config verifies no tokens"):
        require_keys(claim, "t", (), tokens=False)
