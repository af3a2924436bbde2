"""The reference names what is there, all of it, and nothing else."""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Iterator, Mapping

import msgspec

from tpy import limits
from tpy._proto import POOL
from tpy.cli.development import DEFAULTS
from tpy.cli.flags import FLAG_BY_NAME
from tpy.cli.main import cli
from tpy.config import ModelConfig
from tpy.errors import ErrorCode
from tpy.flag import Support
from tpy.frontends.grpc.calls import GRPC_STATUS
from tpy.frontends.http.app import create_app
from tpy.frontends.http.codec.response import HTTP_STATUS
from tpy.telemetry.host import SERVER_FAMILIES
from tpy_data.generation.engine_numbers import FAMILIES

from .pages import ROOT

REFERENCE = ROOT / "docs" / "reference"


def _text(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def _rows(text: str) -> Iterator[list[str]]:
    """The cells of every table row that begins with code."""
    for line in text.splitlines():
        if line.startswith("| `"):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def _codes(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def _fields(message: type[msgspec.Struct], prefix: str = "") -> Iterator[str]:
    """The paths of all fields of a configuration message; maps and lists count as their values."""
    for field in msgspec.structs.fields(message):
        inner = next(_messages(field.type), None)
        path = f"{prefix}{field.encode_name}"
        if inner is None or not msgspec.structs.fields(inner) or (field.name == "parameters" and not prefix):
            yield path
        else:
            yield from _fields(inner, f"{path}.")


def _messages(annotation: object) -> Iterator[type[msgspec.Struct]]:
    if isinstance(annotation, type) and issubclass(annotation, msgspec.Struct):
        yield annotation
    elif typing.get_origin(annotation) in (tuple, types.UnionType, Mapping):
        for part in typing.get_args(annotation):
            yield from _messages(part)


def test_every_field_of_the_configuration_has_its_standing() -> None:
    rows = list(_rows(_text("model-configuration.md")))
    named = [path for row in rows for path in _codes(row[0])]
    whole = tuple(path.removesuffix("*") for path in named if path.endswith(".*"))
    fields = [path for path in _fields(ModelConfig) if not path.startswith(whole)]
    assert sorted(path for path in named if not path.endswith(".*")) == sorted(fields)
    for row in rows:
        assert re.match(r"yes|backend|no effect|refused", row[2]), row


def test_every_route_is_described() -> None:
    described: dict[str, set[str]] = {}
    for row in _rows(_text("http-api.md")):
        for path in _codes(row[1]):
            if path.startswith("/"):
                described.setdefault(path, set()).update(_codes(row[0]))
    assert described == _routes()


def _routes() -> dict[str, set[str]]:
    """Path, as the page writes it, to its methods."""
    routes: dict[str, set[str]] = {}
    # The routes only: nothing is served.
    for rule in create_app(typing.cast(typing.Any, _Anything())).url_map.iter_rules():
        path = re.sub(r"<(?:\w+:)?(\w+)>", r"<\1>", rule.rule)
        routes.setdefault(path, set()).update((rule.methods or set()) - {"HEAD", "OPTIONS"})
    return routes


class _Anything:
    """Stands in for the parts of the application that routes only hold on to."""

    def __getattr__(self, name: str) -> object:
        return self


def test_every_error_code_has_its_status() -> None:
    rows = {row[0].strip("`"): row for row in _rows(_text("errors.md"))}
    for code in ErrorCode:
        assert str(HTTP_STATUS[code]) in rows[code.name][1], code
        assert GRPC_STATUS[code].name == rows[code.name][2], code


def test_every_method_is_described() -> None:
    described = {method for row in _rows(_text("grpc-api.md")) for method in _codes(row[0])}
    service = POOL.FindServiceByName("inference.GRPCInferenceService")
    assert described >= {method.name for method in service.methods}


def test_every_metric_family_is_described() -> None:
    named = {path for row in _rows(_text("metrics.md")) for path in _codes(row[0])}
    assert named == set(SERVER_FAMILIES) | FAMILIES


def test_every_bound_that_is_named_exists() -> None:
    text = (ROOT / "docs" / "explanation" / "security.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([A-Z_]+_M(?:AX|IN))`", text))
    assert named
    assert not {name for name in named if not hasattr(limits, name)}


def test_every_command_is_described() -> None:
    text = _text("command-line.md")
    sections = {name: part for name, _, part in (each.partition("\n") for each in text.split("\n## tpy ")[1:])}
    assert set(sections) == set(cli.all_commands())
    for name, command in cli.all_commands().items():
        if name != "dev":  # those of serve; its own are in test_the_defaults_of_dev_are_described
            missing = {
                option.opts[0]
                for option in command.params
                if not getattr(option, "hidden", False) and f"`{option.opts[0]}`" not in sections[name]
            }
            assert not {each for each in missing if each.startswith("--")}, name
        assert f"\ntpy {name} " in sections[name], "an example"
    assert "Sentinel" not in text
    assert "None`" not in text


def test_the_defaults_of_dev_are_described() -> None:
    section = _text("command-line.md").split("\n## tpy dev\n")[1].split("\n## ")[0]
    rows = {_codes(row[0])[0].removeprefix("--"): _codes(row[1]) for row in _rows(section)}
    assert rows == {name: [text] for name, text in DEFAULTS.items()}


def _not_there_yet() -> list[str]:
    """The code in the first column of the first table of the compatibility page."""
    table = _text("compatibility.md").split("## ")[1]
    return [name for line in table.splitlines() if line.startswith("| ") for name in _codes(line.split("|")[1])]


def test_what_is_missing_comes_first_with_what_to_do_instead() -> None:
    section = _text("compatibility.md").split("\n## ")[1]
    assert section.startswith("Not there yet\n")
    rows = [
        [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in section.splitlines() if line.startswith("| ")
    ]
    assert rows[0] == ["what", "what happens", "what to do instead"]
    assert all(len(row) == 3 and all(row) for row in rows)


def test_flags_are_documented_as_missing_while_they_are() -> None:
    named = {name.removeprefix("--") for name in _not_there_yet() if name.startswith("--")}
    assert named <= set(FLAG_BY_NAME)
    assert not {name for name in named if FLAG_BY_NAME[name].support is Support.HONOURED}, "out of date"
    served = FLAG_BY_NAME["grpc-port"].support is Support.HONOURED
    assert served != ("grpc-port" in named), "gRPC: README.md and docs/reference/compatibility.md are out of date"
