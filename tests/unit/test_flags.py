"""The table of flags: one row, one meaning, everywhere."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tpy.assembly import ServerOptions
from tpy.cli import main, tritonserver
from tpy.cli.flags import FLAG_BY_NAME, FLAGS, MOST_USED
from tpy.cli.parsing import UsageError, collect, parse_value
from tpy.cli.reference import page
from tpy.cli.serve_options import server_options
from tpy.flag import Flag, Kind, Support


def test_names_are_unique_and_reasons_are_given() -> None:
    names = [name for flag in FLAGS for name in (flag.name, *flag.aliases)]
    assert len(names) == len(set(names))
    assert all(flag.why for flag in FLAGS if flag.support is not Support.HONOURED)
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
        ("http-port", "x", 'Bad option: "--http-port". Invalid option value. Got x (expected an integer)'),
        (
            "http-port",
            "70000",
            '"--http-port". Provided option value is out of bound. Got 70000 (expected at most 65535)',
        ),
        (
            "exit-timeout-secs",
            "-1",
            '"--exit-timeout-secs". Provided option value is out of bound. Got -1 (expected at least 0)',
        ),
        (
            "model-control-mode",
            "push",
            "invalid argument for --model-control-mode: push (expected one of none, poll, explicit, on-demand)",
        ),
        ("allow-http", "maybe", 'Bad option: "--allow-http". invalid value for bool option: maybe (expected true or false)'),
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
    with pytest.raises(UsageError, match=r'^TPY_HTTP_PORT: Bad option: "--http-port"\. Invalid option value\. Got x '):
        collect({}, {"TPY_HTTP_PORT": "x"})


@pytest.mark.parametrize("name", ["model_repository", "load_model", "http_restricted_api"])
def test_a_list_takes_no_empty_value(name: str) -> None:
    with pytest.raises(UsageError, match=r"expected a value, got nothing"):
        collect({name: ["a", ""]}, {})


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--http-port"], "Option '--http-port' requires an argument."),
        (["--http-port=-1"], '--http-port". Provided option value is out of bound. Got -1 (expected at least 0)'),
        (["--http-port", "-1"], '--http-port". Provided option value is out of bound. Got -1 (expected at least 0)'),
        (["--http-header-forward-pattern=(("], "--http-header-forward-pattern is not a regular expression"),
        (["--metrics-config=counter_latencies=perhaps"], "--metrics-config counter_latencies=perhaps: expected true or false"),
        (["--metrics-config=zz=1"], "--metrics-config zz=1: expected one of counter_latencies"),
        (["--metrics-config=summary_quantiles=0.5:0.1,1.5:0.1"], "two numbers from 0 to 1, got '1.5:0.1'"),
        (["--metrics-config=summary_quantiles=0.5"], "two numbers from 0 to 1, got '0.5'"),
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


NUMERIC = [flag for flag in FLAGS if flag.kind is Kind.INTEGER]


@pytest.mark.parametrize(
    "text", ["0", "-1", "1.5", "99999999999999999999", "9" * 5000, "abc", "12abc", "0x10", " ", "", "nan", "1e3", "\u0663"]
)
@pytest.mark.parametrize("flag", NUMERIC, ids=lambda flag: flag.name)
def test_every_number_is_taken_or_refused_in_one_line(flag: Flag, text: str) -> None:
    """Triton's words: `Bad option: "--http-port".` and why. What is taken is within the bounds of Triton's integers."""
    value, problem = outcome_of(flag, text)
    if value is None:
        assert problem.startswith(f'Bad option: "--{flag.name}". ')
        assert "\n" not in problem
        assert re.search(r"Got |must be greater than 0, got ", problem)
        assert len(problem) < 300
    else:
        assert -flag.maximum <= value <= flag.maximum <= 2**63 - 1
        assert flag.minimum is None or value >= flag.minimum
        assert text in ("0", "-1", "\u0663")


def outcome_of(flag: Flag, text: str) -> tuple[int | None, str]:
    """The value that is taken, or why none is."""
    try:
        value = parse_value(flag, text)
    except UsageError as error:
        return None, str(error)
    assert isinstance(value, int)
    return value, ""


def test_sizes_are_greater_than_nothing() -> None:
    with pytest.raises(UsageError, match="--http-max-input-size must be greater than 0"):
        parse_value(FLAG_BY_NAME["http-max-input-size"], "0")
    assert parse_value(FLAG_BY_NAME["http-max-input-size"], str(2**63 - 1)) == 2**63 - 1
    with pytest.raises(UsageError, match="out of bound"):
        parse_value(FLAG_BY_NAME["http-max-input-size"], str(2**63))


def test_what_is_used_most_comes_first_in_the_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["tpy", "dev", "--help"])
    with pytest.raises(SystemExit):
        main()
    sections = re.split(r"(?m)^(\S.*):$", capsys.readouterr().out)
    assert sections[1::2][:2] == ["Options", "Most used"]
    listed = [re.findall(r"(?m)^  --([a-z0-9-]+)", section) for section in sections[4::2]]
    assert listed[0] == list(MOST_USED)
    others = [name for section in listed[1:] for name in section]
    assert sorted(others) == sorted({flag.name for flag in FLAGS} - set(MOST_USED))
    assert "Default: plain." in sections[4], "the default of dev"


@pytest.mark.parametrize("command", ["tpy serve", "tritonserver"])
def test_the_help_lists_every_flag(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", [*command.split(), "--help"])
    with pytest.raises(SystemExit) as ended:
        (main if command == "tpy serve" else tritonserver)()
    assert ended.value.code == 0
    told = capsys.readouterr().out
    assert told.startswith(f"Usage: {command} ")
    assert not [name for name in FLAG_BY_NAME if f"  --{name}" not in told and f", --{name}" not in told]
    assert "Accepted, no effect: one event loop serves all connections." in " ".join(told.split())


def test_a_flag_of_the_server_without_its_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["tpy", "--model-repository", "/models", "--http-port=1"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "tpy: error: unrecognized option '--model-repository', did you mean: tpy serve --model-repository /models --http-port=1\n"
    )


def test_flags_may_be_abbreviated_while_they_are_clear(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As getopt takes them for Triton; `--http-p` is one flag, `--http` is many."""
    for argument, problem in (
        ("--http-p=x", '"--http-port". Invalid option value'),
        ("--http=x", "unrecognized option '--http'"),
    ):
        monkeypatch.setattr("sys.argv", ["tritonserver", "--model-repo=/nonexistent", argument])
        with pytest.raises(SystemExit) as ended:
            tritonserver()
        assert ended.value.code == 1
        assert problem in capsys.readouterr().err


def test_every_flag_that_is_not_honoured_is_listed_as_a_difference() -> None:
    text = (Path(__file__).parents[2] / "docs/reference/compatibility.md").read_text()
    ignored = text.partition("Accepted, with a warning")[2].partition("\n")[0]
    assert [flag.name for flag in FLAGS if flag.support is Support.IGNORED and f"`--{flag.name}`" not in ignored] == []


def test_the_command_is_installed_under_tritons_name() -> None:
    scripts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"tpy": "tpy.__main__:main", "tritonserver": "tpy.__main__:tritonserver"}


def test_a_flag_without_effect_warns() -> None:
    _, warnings = collect({"http_thread_count": ["3"]}, {})
    assert warnings == ["--http-thread-count has no effect: one event loop serves all connections"]
    _, warnings = collect({"trace_rate": ["1000"]}, {})
    assert warnings == ["Warning: '--trace-rate' has been deprecated. Please use '--trace-config rate=N' instead."]


def test_the_environment_of_a_platform_counts_last() -> None:
    vertex = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "8123", "AIP_STORAGE_URI": "gs://bucket/models"}
    values, _ = collect({}, vertex)
    assert (values["allow_vertex_ai"], values["allow_http"], values["allow_grpc"]) == (True, False, False)
    assert (values["vertex_ai_port"], values["model_repository"]) == (8123, ("gs://bucket/models",))
    values, _ = collect({"allow_http": ["true"], "model_repository": ["here"]}, {**vertex, "TPY_VERTEX_AI_PORT": "8124"})
    assert (values["allow_http"], values["vertex_ai_port"], values["model_repository"]) == (True, 8124, ("here",))
    with pytest.raises(UsageError, match="--vertex-ai-port"):
        collect({}, {"AIP_HTTP_PORT": "x"})
    values, _ = collect({}, {"AIP_MODE": "TRAINING"})
    assert (values["allow_vertex_ai"], values["allow_http"]) == (False, True)


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


START_SCRIPT = """
--id=triton --exit-timeout-secs=30 --log-verbose=false --log-info=true --log-warning=1 --log-error=True --log-format=ISO8601
--log-file=/dev/null --model-repository=/models --exit-on-error=false --strict-readiness=false --model-control-mode=explicit
--repository-poll-secs=0 --load-model=a --load-model=b --model-config-name=h100 --model-load-thread-count=8
--model-load-retry-count=2 --model-namespacing=false --enable-peer-access=false --allow-http=true --http-address=0.0.0.0
--http-port=8000 --reuse-http-port=true --http-header-forward-pattern=x-.* --http-thread-count=16 --http-max-input-size=134217728
--http-restricted-api=model-repository,logging:key=secret --allow-grpc=true --grpc-address=0.0.0.0 --grpc-port=8001
--reuse-grpc-port=true --grpc-header-forward-pattern=x-.* --grpc-infer-thread-count=4 --grpc-infer-allocation-pool-size=16
--grpc-max-response-pool-size=100 --grpc-use-ssl=false --grpc-infer-response-compression-level=high --grpc-keepalive-time=10000
--grpc-keepalive-timeout=20000 --grpc-keepalive-permit-without-calls=true --grpc-http2-max-pings-without-data=0
--grpc-http2-min-recv-ping-interval-without-data=5000 --grpc-http2-max-ping-strikes=0 --grpc-max-connection-age=60000
--grpc-max-connection-age-grace=1000 --grpc-restricted-protocol=shared-memory:key=secret --allow-sagemaker=false
--sagemaker-port=8080 --sagemaker-thread-count=8 --allow-vertex-ai=false --vertex-ai-port=8080 --allow-metrics=true
--allow-gpu-metrics=false --allow-cpu-metrics=true --metrics-address=127.0.0.1 --metrics-port=8002 --metrics-interval-ms=1000.0
--metrics-config=counter_latencies=true --trace-config=level=OFF --trace-config=triton,file=/tmp/t.json --trace-rate=1000
--backend-directory=/opt/tritonserver/backends --backend-config=python,shm-default-byte-size=1048576
--backend-config=default-max-batch-size=8 --repoagent-directory=/opt/tritonserver/repoagents
--cache-directory=/opt/tritonserver/caches --cache-config=local,size=1048576 --rate-limit=execution_count
--rate-limit-resource=R1:10 --rate-limit-resource=R2:5:0 --pinned-memory-pool-byte-size=536870912
--cuda-memory-pool-byte-size=0:134217728 --cuda-virtual-address-size=0:1073741824 --min-supported-compute-capability=7.0
--buffer-manager-thread-count=4 --host-policy=cpu,cpu-cores=0-3 --host-policy=gpu_0,numa-node=0 --model-load-gpu-limit=0:0.8
--strict-model-config=false --allow-client-shm=false
"""


def test_a_start_script_of_triton_is_taken() -> None:
    """Nearly every flag of its help, most of them not at their default."""
    given: dict[str, list[str]] = {}
    for argument in START_SCRIPT.split():
        name, _, value = argument.removeprefix("--").partition("=")
        given.setdefault(FLAG_BY_NAME[name].field, []).append(value)
    values, warnings = collect(given, {})
    server_options(values, warnings)
    named = [re.findall("--([a-z-]+)", warning)[0] for warning in warnings]
    assert sorted(named) == [
        "buffer-manager-thread-count",
        "cuda-virtual-address-size",
        "enable-peer-access",
        "grpc-infer-allocation-pool-size",
        "grpc-infer-thread-count",
        "grpc-max-response-pool-size",
        "http-thread-count",
        "strict-model-config",
        "trace-rate",
    ]


def test_polling_needs_an_interval() -> None:
    flags = {"model_repository": ["r"], "repository_poll_secs": ["0"]}
    server_options(*collect(flags, {}))
    with pytest.raises(UsageError, match="--repository-poll-secs: expected at least 1"):
        server_options(*collect({**flags, "model_control_mode": ["poll"]}, {}))


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (
            {"model_memory_budget": "much"},
            "--model-memory-budget: 'much' is not a size, expected bytes or a number with KiB, MiB, GiB",
        ),
        ({"model_memory_budget": "0"}, "--model-memory-budget: '0' is not a size"),
        ({"model_memory_budget": "9" * 400}, "--model-memory-budget: '999"),
        ({"model_memory_budget": "-1GiB"}, "--model-memory-budget: '-1GiB' is not a size"),
        ({"model_memory_budget": "gpu:0=1GiB"}, "--model-memory-budget: 'gpu:0=1GiB' is not a size"),
        ({"model_control_mode": "on-demand"}, "--model-control-mode=on-demand needs --model-memory-budget, such as 20GiB"),
        ({"model_sizes_file": "sizes.json"}, "--model-sizes-file needs --model-memory-budget"),
        ({"model_gpu_memory_budget": "0:1GiB"}, "--model-gpu-memory-budget needs --model-memory-budget, such as 20GiB"),
        (
            {"model_memory_budget": "1GiB", "model_gpu_memory_budget": "1GiB"},
            "--model-gpu-memory-budget: expected <GPU device ID>:<size>, such as 0:20GiB, got '1GiB'",
        ),
        (
            {"model_memory_budget": "1GiB", "model_gpu_memory_budget": "-1:1GiB"},
            "--model-gpu-memory-budget: expected <GPU device ID>:<size>, such as 0:20GiB, got '-1:1GiB'",
        ),
        (
            {"model_memory_budget": "1GiB", "model_gpu_memory_budget": "0:much"},
            "--model-gpu-memory-budget: GPU 0: 'much' is not a size, expected bytes or a number with KiB, MiB, GiB",
        ),
    ],
)
def test_budgets_that_cannot_be(given: dict[str, str], reason: str) -> None:
    with pytest.raises(UsageError, match=re.escape(reason)):
        server_options(*collect({"model_repository": ["r"], **{name: [value] for name, value in given.items()}}, {}))


@pytest.mark.parametrize(
    ("text", "size_bytes"), [("4096", 4096), ("1.5 GiB", 3 << 29), ("20g", 20 << 30), ("512MiB", 512 << 20), ("2KB", 2048)]
)
def test_budgets(text: str, size_bytes: int) -> None:
    flags = {"model_repository": ["r"], "model_control_mode": ["on-demand"], "model_memory_budget": [text]}
    found = server_options(*collect(flags, {})).memory_budget
    assert found is not None
    assert (found.bytes, found.gpus, found.all_on_demand) == (size_bytes, {}, True)


def test_budgets_of_gpus() -> None:
    flags = {"model_repository": ["r"], "model_memory_budget": ["1GiB"], "model_gpu_memory_budget": ["0:20GiB", "3:512M"]}
    found = server_options(*collect(flags, {})).memory_budget
    assert found is not None
    assert (found.bytes, found.gpus) == (1 << 30, {0: 20 << 30, 3: 512 << 20})
    with pytest.raises(UsageError, match="--model-gpu-memory-budget: GPU 3 is given twice"):
        server_options(*collect({**flags, "model_gpu_memory_budget": ["3:1GiB", "03:1GiB"]}, {}))


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
    shown = {option.name: option.value for option in options.shown}
    assert shown["http_restricted_api"] == "health,metadata:x-key=***\nstatistics:x-key=***"
    assert shown["grpc_restricted_protocol"] == "health:key=***"
    assert "hidden" not in str(shown)


def test_pools_of_memory() -> None:
    def options(**flags: str) -> ServerOptions:
        given = {"model_repository": ["r"], **{name: text.split() for name, text in flags.items()}}
        return server_options(*collect(given, {}))

    assert (options().pinned_pool_bytes, options().cuda_pool_bytes) == (268_435_456, {})
    found = options(pinned_memory_pool_byte_size="-5", cuda_memory_pool_byte_size="0:100 1:7 0:5 2:-1")
    assert (found.pinned_pool_bytes, found.cuda_pool_bytes) == (0, {0: 5, 1: 7, 2: 0})
    for text in ("x", "0", "0:x", "0:1:2"):
        with pytest.raises(UsageError, match=f"option format is '<GPU device ID>:<pool byte size>'. Got {text}"):
            options(cuda_memory_pool_byte_size=text)
