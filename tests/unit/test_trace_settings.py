"""Trace settings: which are in force after updates, and which requests are sampled by them; against a naive model."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.cli.parsing import UsageError
from tpy.cli.trace_options import trace_options
from tpy.errors import InvalidArgument, TpyError
from tpy.telemetry.traces.core.setting import TraceSetting
from tpy.telemetry.traces.core.settings import TraceSettings, parse_updates
from tpy.telemetry.traces.options import TraceOptions
from tpy.telemetry.traces.tracer import Tracer

STAMPS = frozenset({"TIMESTAMPS"})
DEFAULT = TraceSetting(levels=STAMPS, rate=3, count=-1)

# What Triton 2.51 answers to updates over HTTP and gRPC.
REFUSED = [
    ("trace_rate", "x", "Unable to parse 'trace_rate', got: x"),
    ("trace_rate", "", "Unable to parse 'trace_rate', got: "),
    ("trace_rate", "0", "Attempting to set invalid trace setting :sample rate must be non-zero"),
    ("trace_rate", "4294967295", "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 4294967295"),
    ("trace_count", "x", "Unable to parse 'trace_count', got: x"),
    ("trace_count", "-2", "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
    ("trace_count", "0", "Attempting to set invalid trace setting :"),
    ("trace_count", "99999999999", "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 99999999999"),
    (
        "log_frequency",
        "99999999999",
        "Unable to parse 'log_frequency', value is out of range [ 0, 4294967295 ], got: 99999999999",
    ),
    ("trace_file", "x", "trace file location can not be updated through network protocol"),
]


@pytest.mark.parametrize(("name", "text", "refusal"), REFUSED)
def test_refused_updates_change_nothing(name: str, text: str, refusal: str) -> None:
    settings = TraceSettings(DEFAULT)
    with pytest.raises(TpyError) as caught:
        settings.update("", parse_updates({name: [text], "trace_rate": ["7"]} if name != "trace_rate" else {name: [text]}))
    assert str(caught.value) == refusal
    assert settings.active().setting == DEFAULT


@pytest.mark.parametrize(
    ("texts", "levels"),
    [
        (["OFF"], []),
        (["TENSORS"], ["TENSORS"]),
        (["MAX", "TENSORS"], ["TENSORS"]),
        (["MAX"], ["TIMESTAMPS"]),
        ([], ["TIMESTAMPS"]),
    ],
)
def test_levels_that_nobody_knows_change_nothing(texts: list[str], levels: list[str]) -> None:
    settings = TraceSettings(DEFAULT)
    settings.update("", parse_updates({"trace_level": texts, "nosuch": ["1"], "trace_mode": ["x"]}))
    assert settings.active().setting.levels == frozenset(levels)


def test_off_stands_alone_and_numbers_are_single() -> None:
    with pytest.raises(InvalidArgument, match="Expect only one trace level 'OFF' is specified"):
        parse_updates({"trace_level": ["OFF", "TENSORS"]})
    with pytest.raises(InvalidArgument, match="expect only 1 value for 'trace_rate'"):
        parse_updates({"trace_rate": ["1", "2"]})


def test_an_update_after_the_last_trace_is_accepted() -> None:
    """Triton refuses every update of the server once a model has used up a count of its own."""
    settings = TraceSettings(DEFAULT)
    settings.update("m", {"trace_count": 1, "trace_rate": 1})
    assert [settings.active("m").sample() for _ in range(3)] == [True, False, False]
    settings.update("", {})
    settings.update("m", {})
    assert settings.active("m").remaining == 0


class Model:
    """The settings, worked out from all that was ever said."""

    def __init__(self) -> None:
        self.said: dict[str, dict[str, object]] = {"": {}, "a": {}, "b": {}}

    def update(self, model: str, name: str, value: object) -> None:
        if value is None:
            self.said[model].pop(name, None)
        else:
            self.said[model][name] = value

    def of(self, model: str) -> TraceSetting:
        values: dict[str, object] = {"rate": 3, "log_frequency": 0, "levels": STAMPS, "count": -1}
        for said in (self.said[""], self.said[model]):
            values.update(said)
        return TraceSetting(**values)  # type: ignore[arg-type]


FIELDS = {"trace_rate": "rate", "log_frequency": "log_frequency", "trace_level": "levels"}
VALUES = {
    "trace_rate": st.integers(1, 9) | st.none(),
    "log_frequency": st.integers(0, 9) | st.none(),
    "trace_level": st.sampled_from([frozenset(), STAMPS, frozenset({"TENSORS"}), None]),
}


@given(st.lists(st.tuples(st.sampled_from(["", "a", "b"]), st.sampled_from(sorted(VALUES)), st.data())))
def test_models_follow_the_server_in_what_they_were_not_given(steps: list[tuple[str, str, st.DataObject]]) -> None:
    settings, naive = TraceSettings(DEFAULT), Model()
    for model, name, data in steps:
        value = data.draw(VALUES[name])
        settings.update(model, {name: value})
        naive.update(model, FIELDS[name], value)
        for each in ("", "a", "b"):
            assert settings.active(each).setting == naive.of(each)


@given(st.integers(1, 7), st.integers(-1, 5).filter(bool), st.integers(0, 4), st.integers(0, 60))
def test_one_in_so_many_is_sampled_and_so_many_are_a_file(rate: int, count: int, frequency: int, requests: int) -> None:
    active = TraceSettings(TraceSetting(levels=STAMPS, rate=rate, count=count, log_frequency=frequency)).active("m")
    sampled, files, collected = [], [], 0
    for number in range(1, requests + 1):
        if active.sample():
            sampled.append(number)
            collected += 1
            if active.end(collected=True):
                files.append(collected)
                collected = 0
    due = [number for number in range(1, requests + 1) if number % rate == 0]
    assert sampled == (due if count < 0 else due[:count])
    whole, rest = divmod(len(sampled), frequency) if frequency else (0, len(sampled))
    last = [rest] if rest and len(sampled) == count else []
    assert files == [frequency] * whole + last


def test_flags_as_triton_takes_them() -> None:
    given = ["triton,file=/old", "rate=5", "triton,file=/t", "level=MAX", "level=TENSORS", "count=7", "triton,log-frequency=2"]
    options, warnings = trace_options(given, {})
    setting = TraceSetting(levels=frozenset({"TIMESTAMPS", "TENSORS"}), rate=5, count=7, log_frequency=2)
    assert (options.mode, options.file, options.setting, warnings) == ("triton", "/t", setting, [])
    assert trace_options(["triton", "file=/t", "rate=5"], {})[0].file == "/t", "as the environment variable is split"
    assert Tracer(options, None).settings()["trace_level"] == ("TIMESTAMPS", "TENSORS")
    assert "nothing is traced" in trace_options(["level=TIMESTAMPS"], {})[1][0]
    otel, _ = trace_options(["mode=opentelemetry", "opentelemetry,resource=service.name=a=b", "rate=0"], {})
    assert (dict(otel.resource), otel.setting.rate) == ({"service.name": "a=b"}, 0)
    assert Tracer(TraceOptions(), None).settings() == {
        **{"trace_level": ("OFF",), "trace_rate": ("1000",), "trace_count": ("-1",)},
        **{"log_frequency": ("0",), "trace_file": ("",), "trace_mode": ("triton",)},
    }


@pytest.mark.parametrize(
    "text",
    [
        *("bogus", "rate", "rate=", "triton,file=", ",rate=1", "nosuch,x=y", "triton,rate=1", "nosuch=1", "level=LOUD", "mode=x"),
        *("rate=0", "rate=x", "rate=-1", "count=-2", "count=99999999999", "triton,log-frequency=-1"),
        *("opentelemetry,resource=a", "opentelemetry,nosuch=1", "opentelemetry,bsp_max_queue_size=0"),
    ],
)
def test_wrong_flags_are_told(text: str) -> None:
    with pytest.raises(UsageError, match="--trace-config") as caught:
        trace_options(["triton,log-frequency=0", text], {})  # which an older flag's default puts in front
    assert "'0," not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_variables_of_opentelemetry_count_where_the_flags_are_silent() -> None:
    """As in Triton, whose tests look for the words of a wrong one."""
    environment = {"OTEL_BSP_MAX_QUEUE_SIZE": "7", "OTEL_BSP_SCHEDULE_DELAY": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "bad"}
    batch = "opentelemetry,bsp_max_export_batch_size=3"
    otel, _ = trace_options(["mode=opentelemetry", "opentelemetry,bsp_schedule_delay=9", batch], environment)
    assert [otel.otel[f"bsp_{name}"] for name in ("max_queue_size", "schedule_delay", "max_export_batch_size")] == ["7", "9", "3"]
    with pytest.raises(UsageError, match=r'^Bad option: "OTEL_BSP_MAX_EXPORT_BATCH_SIZE"\. Invalid option value\. Got bad '):
        trace_options(["mode=opentelemetry"], environment)
    with pytest.raises(
        UsageError, match=r'^Bad option: "--trace-config opentelemetry,bsp_max_queue_size"\. Invalid option value\. Got x '
    ):
        trace_options(["mode=opentelemetry", "opentelemetry,bsp_max_queue_size=x"], {})
    assert trace_options([], environment)[0].mode == "triton"
