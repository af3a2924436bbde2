"""--trace-config, and the older flags in its form: which requests are traced, and where the traces go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tpy.cli.parsing import UsageError
from tpy.echo import echo
from tpy.telemetry.traces.core.setting import TENSORS, TIMESTAMPS, TraceSetting
from tpy.telemetry.traces.options import OPENTELEMETRY, OTEL_DEFAULTS, TRITON, TraceOptions

_LEVELS = {
    "OFF": "",
    "FALSE": "",
    "TIMESTAMPS": TIMESTAMPS,
    "TRUE": TIMESTAMPS,
    "MIN": TIMESTAMPS,
    "MAX": TIMESTAMPS,
    "TENSORS": TENSORS,
}
_COMMON = ("count", "level", "mode", "rate")
_TRITON = ("file", "log-frequency")
_OTEL_NUMBERS = ("bsp_max_export_batch_size", "bsp_max_queue_size", "bsp_schedule_delay")
_UINT32_MAX = 2**32 - 1


def trace_options(texts: Sequence[str], environment: Mapping[str, str]) -> tuple[TraceOptions, list[str]]:
    """The options of these settings, of which the last one of a name counts and levels and resources add up; and warnings.
    Numbers of OpenTelemetry that are not given are those of its variables in `environment`. Raises UsageError."""
    found: dict[str, str] = {}
    levels: set[str] = set()
    resource: dict[str, str] = {}
    for text in _settings(texts):
        key, value = _parse(text)
        if key == "level":
            levels.add(_level(text, value))
        elif key == "opentelemetry,resource":
            name, _, content = value.partition("=")
            if not name or not content:
                raise UsageError(f"--trace-config: expected opentelemetry,resource=KEY=VALUE, got '{text}'")
            resource[name] = content
        else:
            found[key] = value
    mode = found.get("mode", TRITON)
    if mode not in (TRITON, OPENTELEMETRY):
        raise UsageError(f"--trace-config: mode is triton or opentelemetry, got '{mode}'")
    setting = TraceSetting(
        levels=frozenset(levels - {""}),
        rate=_number("--trace-config rate", found.get("rate", "1000"), 0 if mode == OPENTELEMETRY else 1),
        count=_number("--trace-config count", found.get("count", "-1"), -1, 2**31 - 1),
        log_frequency=_number("--trace-config triton,log-frequency", found.get("triton,log-frequency", "0"), 0),
    )
    otel = {**OTEL_DEFAULTS, **{key.partition(",")[2]: text for key, text in found.items() if key.startswith("opentelemetry,")}}
    for name in _OTEL_NUMBERS:
        variable = f"OTEL_{name.upper()}"
        if mode == OPENTELEMETRY and f"opentelemetry,{name}" not in found and environment.get(variable):
            otel[name] = str(_number(variable, environment[variable], 1))
        _number(f"--trace-config opentelemetry,{name}", otel[name], 1)
    options = TraceOptions(mode=mode, setting=setting, file=found.get("triton,file", ""), otel=otel, resource=resource)
    if mode == TRITON and setting.levels and not options.file:
        return options, ["nothing is traced: a trace level is set, but no file (--trace-config triton,file=FILE)"]
    return options, []


def _settings(texts: Sequence[str]) -> Iterator[str]:
    """The settings; the environment variable's commas have parted a mode from its setting."""
    mode = ""
    for text in texts:
        if text in (TRITON, OPENTELEMETRY) and not mode:
            mode = f"{text},"
        else:
            yield f"{mode}{text}"
            mode = ""
    if mode:
        yield mode


def _parse(text: str) -> tuple[str, str]:
    """The name of a setting, with its mode in front where it has one, and its value."""
    key, _, value = text.partition("=")
    mode, comma, name = key.rpartition(",")
    if not key or not value or (comma and not mode):
        raise UsageError(f"--trace-config option format is '<mode>,<setting>=<value>' or '<setting>=<value>'. Got {text}")
    known = {"": _COMMON, TRITON: _TRITON, OPENTELEMETRY: ("resource", *OTEL_DEFAULTS)}
    if mode not in known:
        raise UsageError(f"--trace-config: expected the mode triton or opentelemetry, got '{mode}' in '{text}'")
    if name not in known[mode]:
        whose = f"mode '{mode}'" if mode else "all modes"
        raise UsageError(f"--trace-config: there is no setting '{name}' of {whose}; there are {', '.join(sorted(known[mode]))}")
    return key, value


def _level(text: str, value: str) -> str:
    level = _LEVELS.get(value.upper())
    if level is None:
        raise UsageError(f"--trace-config: level is OFF, TIMESTAMPS or TENSORS, got '{value}' in '{text}'")
    return level


def _number(name: str, text: str, minimum: int, maximum: int = _UINT32_MAX) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 12 or not minimum <= int(text) <= maximum:
        raise UsageError(
            f'Bad option: "{name}". Invalid option value. Got {echo(text)} (expected a number from {minimum} to {maximum})'
        )
    return int(text)
