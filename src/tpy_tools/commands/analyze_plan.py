"""The options of `tpy analyze` as a plan, and as a server to run it on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import orjson

from tpy.cli.parsing import UsageError
from tpy_tools.commands.server_address import parse_headers

if TYPE_CHECKING:
    from tpy_tools.analyze.core.space import Value, Wishes
    from tpy_tools.analyze.plan import AnalysisPlan, LoadPlan, Profile

Options = Mapping[str, Any]


class ServerPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The server: our own for these repositories, or the one at `url`, which is asked with `headers`."""

    repositories: tuple[Path, ...] = ()
    url: str = ""
    grpc_url: str = ""
    headers: Mapping[str, str] = {}
    flags: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    log: Path | None = None


def server_of(options: Options) -> ServerPlan:
    """The server. Raises UsageError."""
    repositories = tuple(Path(text) for text in texts(options["model_repository"]))
    url = options["url"]
    if bool(repositories) == bool(url):
        raise UsageError(
            "say either where the models are (--model-repository DIRECTORY) or where the server is (--url HOST:PORT)"
        )
    headers = parse_headers(texts(options["header"]))
    if headers and not url:
        raise UsageError("--header: goes to a running server, expected --url HOST:PORT with it")
    return ServerPlan(
        repositories=repositories,
        url=str(url or ""),
        grpc_url=str(options["grpc_url"] or ""),
        headers=headers,
        flags=tuple(texts(options["server_flag"])),
        environment=dict(options.get("server_environment", {})),
        log=Path(options["server_log"]) if options.get("server_log") else None,
    )


def plan_of(model: str, options: Options, *, several: bool) -> AnalysisPlan:
    """The analysis of a model. Raises UsageError, AnalysisError."""
    from tpy_tools.analyze.core.optuna_search import OptunaSettings
    from tpy_tools.analyze.plan import AnalysisPlan, parse_numbers

    levels = parse_numbers(str(options["rate"] or options["concurrency"]), minimum=1)
    folder = Path(str(options["output"])) if options["output"] else Path("tpy-analyze")
    checkpoints = Path(str(options["checkpoint_directory"])) if options["checkpoint_directory"] else None
    return AnalysisPlan(
        profiles=(_profile(model, options),),
        concurrencies=tuple(int(str(level)) for level in levels),
        by_rate=bool(options["rate"]),
        search=str(options["search"]),
        optuna=OptunaSettings(
            trials_max=options["optuna_max_trials"],
            trials_min=options.get("optuna_min_trials"),
            early_exit=int(options["optuna_early_exit_threshold"]),
            percent_min=int(options.get("optuna_percent_min", 5)),
            percent_max=int(options.get("optuna_percent_max", 10)),
            concurrency_formula=bool(options.get("concurrency_formula", False)),
        ),
        output=folder / model if several or not options["output"] else folder,
        checkpoints=checkpoints / model if checkpoints is not None and several else checkpoints,
    )


def together(plans: Sequence[AnalysisPlan], options: Options) -> AnalysisPlan:
    """One analysis of several models at the same time. Raises UsageError when their loads are not the same."""
    first, names = plans[0], "+".join(profile.model for plan in plans for profile in plan.profiles)
    for plan in plans[1:]:
        for what, here, there in (
            ("--concurrency", first.concurrencies, plan.concurrencies),
            ("--batch-size", first.batch_sizes, plan.batch_sizes),
        ):
            if here != there:
                raise UsageError(
                    f"models that are measured together have the same {what}: "
                    f"{first.name} has {_joined(here)}, {plan.name} has {_joined(there)}"
                )
    profiles = tuple(profile for plan in plans for profile in plan.profiles)
    folder = Path(str(options["output"])) if options["output"] else Path("tpy-analyze") / names
    checkpoints = Path(str(options["checkpoint_directory"])) if options["checkpoint_directory"] else None
    return msgspec.structs.replace(first, profiles=profiles, output=folder, checkpoints=checkpoints)


def together_server(servers: Sequence[ServerPlan]) -> ServerPlan:
    """The one server of models that are measured together: with the flags and the environment of all of them."""
    flags = dict.fromkeys(flag for server in servers for flag in server.flags)
    environment = {name: value for server in servers for name, value in server.environment.items()}
    return msgspec.structs.replace(servers[0], flags=tuple(flags), environment=environment)


def _joined(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))


def _profile(model: str, options: Options) -> Profile:
    from tpy_tools.analyze.core.goal import Goal
    from tpy_tools.analyze.plan import Profile, constraints, parse_objectives

    bounds = constraints(
        latency_ms=_number(options["latency_ms"]),
        percentile=int(options["percentile"]),
        memory_mb=_number(options["memory_mb"]),
        throughput=_number(options["min_throughput"]),
    )
    objective = options["objective"]
    goal = Goal(
        objectives=parse_objectives(objective) if isinstance(objective, str) else tuple(objective),
        constraints=(*bounds, *options.get("constraints", ())),
        weight=float(options.get("weighting", 1)),
    )
    members = str(options["members"]).split(",") if options["members"] else []
    cpu_only = [model] if options.get("cpu_only") else []
    return Profile(
        model=model,
        members=tuple(members),
        wishes=wishes_of(options),
        own={name: wishes_of({**options, **own}) for name, own in options.get("member_options", {}).items()},
        cpu_only=(*cpu_only, *options.get("cpu_only_members", ())),
        goal=goal,
        load=_load(options),
    )


def _load(options: Options) -> LoadPlan:
    from tpy_tools.analyze.plan import LoadPlan, parse_numbers

    protocol = str(options["protocol"]).lower()
    if options["streaming"] and protocol != "grpc":
        raise UsageError("--streaming is ModelStreamInfer: it needs --protocol grpc")
    return LoadPlan(
        protocol=protocol,
        streaming=bool(options["streaming"]),
        batch_sizes=tuple(int(str(size)) for size in parse_numbers(str(options["batch_size"]), minimum=1)),
        input_data=str(options["input_data"]),
        shapes=dict(_shape(one) for one in texts(options["shape"])),
        string_length=int(options.get("string_length", 128)),
        string_data=options.get("string_data"),
        sequence_length=int(options["sequence_length"]),
        sequence_variation=float(options.get("sequence_length_variation", 20)),
        poisson=options.get("request_distribution", "constant") == "poisson",
        window_s=float(options["measurement_interval"]) / 1000,
        windows_max=int(options["max_trials"]),
        stable_percent=float(options["stability_percentage"]),
        percentile=int(options.get("stable_percentile", -1)),
    )


def wishes_of(options: Options) -> Wishes:
    """The values to try. Raises UsageError, AnalysisError."""
    from tpy_tools.analyze.core.fields import FIELD, THREADS
    from tpy_tools.analyze.core.space import OFF
    from tpy_tools.analyze.plan import parse_numbers

    wishes: dict[str, tuple[Value, ...]] = {}
    for name, option, words in (
        ("instances", "instances", ()),
        ("max_batch_size", "batches", ()),
        ("delay_us", "delays", (OFF,)),
    ):
        if options[option]:
            wishes[name] = parse_numbers(str(options[option]), words=words, minimum=0 if words else 1)
    if options["threads"] == "auto":
        wishes[f"{THREADS}?"] = _threads_here()
    elif options["threads"]:
        wishes[THREADS] = tuple(str(count) for count in parse_numbers(str(options["threads"]), minimum=1))
    if options["preferred"]:
        wishes["preferred_batch_size"] = (None, *parse_numbers(str(options["preferred"]), minimum=1))
    if options["kinds"]:
        wishes["kind"] = tuple(_kind(word) for word in str(options["kinds"]).split(","))
    for one in texts(options["parameter"]):
        name, equals, values = one.partition("=")
        if not equals or not name or not values:
            raise UsageError(f"expected --parameter NAME=VALUE,VALUE, got '{one}'")
        wishes[f"parameter:{name}"] = tuple(values.split(","))
    for one in texts(options["field"]):
        name, found = _field(one)
        wishes[FIELD + name] = found
    return wishes


def _threads_here() -> tuple[str, ...]:
    """1, 2, 4 and so on, and the number of cores."""
    cores = len(os.sched_getaffinity(0))
    powers = [2**power for power in range(cores.bit_length()) if 2**power < cores]
    return tuple(str(count) for count in (*powers, cores))


def _field(text: str) -> tuple[str, tuple[str, ...]]:
    from tpy.config.model_config import ModelConfig
    from tpy_tools.analyze.core.fields import json_text

    name, _, values = text.partition("=")
    if name not in ModelConfig.__struct_fields__:
        raise UsageError(f"--field: a configuration has no field '{name}'")
    try:
        document = orjson.loads(values)
    except orjson.JSONDecodeError:
        document = None
    if not isinstance(document, list) or not document:
        raise UsageError(f"expected --field NAME=[JSON, ...], got '{text}'")
    return name, tuple(json_text(value) for value in document)


def texts(value: object) -> list[str]:
    """The values of an option that can be given more than once."""
    return [str(one) for one in value] if isinstance(value, list | tuple) else []


def _number(value: object) -> float | None:
    return None if value is None else float(str(value))


def _kind(word: str) -> str:
    from tpy.config.model_config import InstanceKind

    if word not in ("KIND_CPU", "KIND_GPU", "KIND_AUTO", "KIND_MODEL"):
        raise UsageError(f"expected --kinds of {', '.join(kind.name for kind in InstanceKind)}, got '{word}'")
    return word


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    name, _, sizes = text.rpartition(":")
    if not name or not all(size.isdecimal() for size in sizes.split(",")):
        raise UsageError(f"expected --shape NAME:SIZE,SIZE, got '{text}'")
    return name, tuple(int(size) for size in sizes.split(","))
