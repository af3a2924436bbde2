"""The table of flags: one row, one meaning, everywhere."""

from __future__ import annotations

import re

import pytest

from tpy.cli import main
from tpy.cli.flags import FLAG_BY_NAME, FLAGS, Kind, Standing
from tpy.cli.parsing import UsageError, collect, parse_value
from tpy.cli.reference import page
from tpy.cli.serve_options import server_options


def test_names_are_unique_and_reasons_are_given() -> None:
    names = [name for flag in FLAGS for name in (flag.name, *flag.aliases)]
    assert len(names) == len(set(names))
    assert all(flag.why for flag in FLAGS if flag.standing is not Standing.HONOURED)
    assert len({flag.environment for flag in FLAGS}) == len(FLAGS)


def test_every_flag_is_in_the_reference_page() -> None:
    text = page()
    assert all(f"`--{flag.name}`" in text and f"`{flag.environment}`" in text for flag in FLAGS)


@pytest.mark.parametrize(("text", "value"), [("True", True), ("FALSE", False), ("1", True), ("0", False), ("off", False)])
def test_booleans_as_triton_takes_them(text: str, value: bool) -> None:
    assert parse_value(FLAG_BY_NAME["strict-model-config"], text) is value


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("http-port", "x", "--http-port: expected an integer, got 'x'"),
        ("http-port", "70000", "--http-port: expected at most 65535, got 70000"),
        ("exit-timeout-secs", "-1", "--exit-timeout-secs: expected at least 0, got -1"),
        ("model-control-mode", "push", "--model-control-mode: expected one of none, poll, explicit, got 'push'"),
        ("allow-http", "maybe", "--allow-http: expected true or false, got 'maybe'"),
    ],
)
def test_wrong_values_are_named_with_what_was_expected(name: str, text: str, expected: str) -> None:
    with pytest.raises(UsageError, match=re.escape(expected)):
        parse_value(FLAG_BY_NAME[name], text)


def test_environment_counts_where_the_command_line_is_silent() -> None:
    environment = {"TPY_HTTP_PORT": "9", "TPY_MODEL_REPOSITORY": "a,b", "TPY_ID": "x"}
    values, warnings = collect({"id": ["mine"]}, environment)
    assert values["http_port"] == 9
    assert values["model_repository"] == ("a", "b")
    assert values["id"] == "mine"
    assert not warnings


def test_an_empty_variable_counts_as_not_set_and_a_wrong_one_is_named() -> None:
    values, _ = collect({}, {"TPY_HTTP_PORT": "", "TPY_ALLOW_HTTP": "", "TPY_MODEL_REPOSITORY": ""})
    assert (values["http_port"], values["allow_http"], values["model_repository"]) == (8000, True, ())
    with pytest.raises(UsageError, match=r"^TPY_HTTP_PORT: --http-port: expected an integer, got 'x'$"):
        collect({}, {"TPY_HTTP_PORT": "x"})


@pytest.mark.parametrize("name", ["model_repository", "load_model", "http_restricted_api"])
def test_a_list_takes_no_empty_value(name: str) -> None:
    with pytest.raises(UsageError, match=r"expected a value, got nothing"):
        collect({name: ["a", ""]}, {})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--http-port"], "Option '--http-port' requires an argument."),
        (["--http-port=-1"], "--http-port: expected at least 0, got -1"),
        (["--http-port", "-1"], "--http-port: expected at least 0, got -1"),
        (["--http-header-forward-pattern=(("], "--http-header-forward-pattern is not a regular expression"),
        (["--metrics-config=counter_latencies=perhaps"], "--metrics-config counter_latencies=perhaps is not supported"),
        (["--http-restricted-api=health:\u043a=v"], "cannot be the name of a header"),
        (["--http-address=unix:/tmp/s"], "--metrics-address: expected an address"),
        (["--trace-count=-1", "--model-store="], "--model-repository: expected a value, got nothing"),
    ],
)
def test_wrong_command_lines_end_in_one_line(
    arguments: list[str], problem: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tpy", "serve", "--model-repository=/nonexistent", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("tpy: error: ")
    assert problem in line


def test_a_flag_without_effect_warns_and_one_not_offered_is_refused() -> None:
    _, warnings = collect({"http_thread_count": ["3"]}, {})
    assert warnings == ["--http-thread-count has no effect: one event loop serves all connections"]
    with pytest.raises(UsageError, match="--allow-client-shm is not supported"):
        collect({"allow_client_shm": ["true"]}, {})
    values, warnings = collect({"allow_client_shm": ["false"]}, {})
    assert values["allow_client_shm"] is False
    assert not warnings


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("log-verbose", "true", 1),
        ("log-verbose", "False", 0),
        ("log-verbose", "3", 3),
        ("metrics-interval-ms", "2000.0", 2000),
        ("repository-poll-secs", "0", 0),
    ],
)
def test_numbers_as_triton_takes_them(name: str, text: str, value: int) -> None:
    assert parse_value(FLAG_BY_NAME[name], text) == value


@pytest.mark.parametrize("given", [["level=OFF"], ["rate=100", "triton,file=/tmp/t"], ["mode=opentelemetry", "level=off"]])
def test_trace_settings_without_a_level_ask_for_nothing(given: list[str]) -> None:
    _, warnings = collect({"trace_config": given}, {})
    assert warnings == ["--trace-config has no effect: this version does not offer it"]
    with pytest.raises(UsageError, match="--trace-config is not supported"):
        collect({"trace_config": [*given, "level=TIMESTAMPS"]}, {})


def test_values_with_commas_are_separated_by_semicolons_in_the_environment() -> None:
    values, _ = collect({}, {"TPY_HOST_POLICY": "a,cpu-cores=0-1,3-3;b,numa-node=0", "TPY_BACKEND_CONFIG": "python,a=1;b=2"})
    assert values["host_policy"] == ("a,cpu-cores=0-1,3-3", "b,numa-node=0")
    assert values["backend_config"] == ("python,a=1", "b=2")


def test_backend_settings_as_triton_takes_them() -> None:
    given = ["python,a=1", "b=2", "python,a=3", "onnxruntime,c=x=y,z"]
    backends = server_options(*collect({"model_repository": ["r"], "backend_config": given}, {})).backends
    assert backends.config == {"python": {"a": "3"}, "onnxruntime": {"c": "x=y,z"}}
    assert backends.config_of_all == {"b": "2"}


@pytest.mark.parametrize("given", [",a=1", "python,a", "python,a=", "python,=1", "a", "=1"])
def test_backend_settings_that_triton_refuses(given: str) -> None:
    with pytest.raises(UsageError, match=rf"--backend-config option format is .*\. Got {given}$"):
        server_options(*collect({"model_repository": ["r"], "backend_config": [given]}, {}))


def test_polling_needs_an_interval() -> None:
    flags = {"model_repository": ["r"], "repository_poll_secs": ["0"]}
    server_options(*collect(flags, {}))
    with pytest.raises(UsageError, match="--repository-poll-secs: expected at least 1"):
        server_options(*collect({**flags, "model_control_mode": ["poll"]}, {}))


def test_defaults_have_the_type_of_their_kind() -> None:
    types = {Kind.TEXT: str, Kind.INTEGER: int, Kind.BOOLEAN: bool, Kind.CHOICE: str, Kind.LIST: tuple}
    assert all(type(flag.default) is types[flag.kind] for flag in FLAGS)


def test_keys_of_restricted_apis_are_not_shown() -> None:
    flags = {
        "model_repository": ["r"],
        "http_restricted_api": ["health,metadata:x-key=hidden=", "statistics:x-key=hidden"],
        "grpc_restricted_protocol": ["health:key=hidden"],
    }
    options = server_options(*collect(flags, {}))
    shown = dict(options.shown)
    assert shown["http_restricted_api"] == "health,metadata:x-key=***\nstatistics:x-key=***"
    assert shown["grpc_restricted_protocol"] == "health:key=***"
    assert "hidden" not in str(shown)
