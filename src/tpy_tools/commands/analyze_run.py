"""Runs `tpy analyze`: plans from options and files, a server, the results."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tpy.cli.parsing import UsageError
from tpy_tools.commands.analyze_plan import ServerPlan, plan_of, server_of, together, together_server
from tpy_tools.commands.server_address import parse_address

if TYPE_CHECKING:
    from tpy_tools.analyze.model_analyzer import FileSettings
    from tpy_tools.analyze.places import ServerPlace
    from tpy_tools.analyze.plan import AnalysisPlan
    from tpy_tools.analyze.running import AnalysisOutcome

_INTERRUPTED = 130
_HTTP_PORT = 8000
_SERVER = ("model_repository", "url", "grpc_url")


def run(models: Sequence[str], given: Mapping[str, Any], *, is_given: Callable[[str], bool]) -> int:
    """Analyze the models, one after another or together. Returns the exit code."""
    from tpy_tools.analyze.model_analyzer import read_file

    options = dict(given)
    file = options.pop("config_file")
    as_json = bool(options.pop("as_json"))
    settings = read_file(Path(str(file))) if file is not None else None
    if settings is not None:
        for warning in settings.warnings:
            click.echo(f"{file}: {warning}", err=True)
        server_given = any(is_given(name) for name in _SERVER)
        for name, value in _of_one_server(settings.options).items():
            if not is_given(name) and not (server_given and name in _SERVER):
                options[name] = value
    runs = _runs(models, options, settings, is_given)
    for plan, _ in runs:
        _require_searchable(plan)
        _require_writable(plan.output)
        if plan.checkpoints is not None:
            _require_writable(plan.checkpoints, "--checkpoint-directory")
    signal.signal(signal.SIGTERM, lambda number, frame: _interrupt())
    code = 0
    for plan, server in runs:
        code = _analyze(plan, server, as_json=as_json) or code
        if code == _INTERRUPTED:
            break
    return code


def _runs(
    models: Sequence[str], options: Mapping[str, Any], settings: FileSettings | None, is_given: Callable[[str], bool]
) -> list[tuple[AnalysisPlan, ServerPlan]]:
    """The analyses, each with its server. Raises UsageError."""
    profiles = {} if settings is None else {profile.name: profile.options for profile in settings.models}
    names = list(dict.fromkeys(models)) or list(profiles)
    if not names:
        raise UsageError("missing argument 'MODEL': tpy analyze MODEL --model-repository DIRECTORY")
    runs = []
    for name in names:
        own = {**options, **{key: value for key, value in profiles.get(name, {}).items() if not is_given(key)}}
        runs.append((plan_of(name, own, several=len(names) > 1), server_of(own)))
    if not options["together"] or len(names) == 1:
        return runs
    return [(together([plan for plan, _ in runs], options), together_server([server for _, server in runs]))]


def _of_one_server(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a file, which may name a repository and a server: that of its launch mode counts."""
    found = dict(options)
    if found.pop("launch_mode", "local") == "remote":
        found.update(model_repository=(), url=found.get("url", f"localhost:{_HTTP_PORT}"))
    else:
        found.update(url=None, grpc_url=None)
    return found


def _interrupt() -> None:
    raise KeyboardInterrupt


def _require_searchable(plan: AnalysisPlan) -> None:
    """Raises UsageError for a search that needs what is not installed."""
    from tpy_tools.analyze.core.optuna_search import is_optuna_installed

    if plan.search == "optuna" and not is_optuna_installed():
        raise UsageError("--search optuna needs Optuna: pip install optuna")


def _require_writable(folder: Path, option: str = "--output") -> None:
    """Raises UsageError for a folder that nothing can be written to, before anything is measured."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise UsageError(f"{option} {folder}: {error.strerror}") from None


def _analyze(plan: AnalysisPlan, server: ServerPlan, *, as_json: bool) -> int:
    from tpy.cli.serve_target import require_repository
    from tpy_tools.analyze.places import OwnPlace, RunningPlace, ServerAccess
    from tpy_tools.analyze.running import Analysis
    from tpy_tools.analyze.server import OwnServer, ServedModels
    from tpy_tools.load import Target

    with ExitStack() as stack:
        place: ServerPlace
        if server.url:
            host, port = parse_address(server.url, _HTTP_PORT)
            grpc_host, grpc_port = parse_address(server.grpc_url or f"{host}:8001", 8001)
            access = ServerAccess(
                models=ServedModels(host, port, server.headers),
                http=Target(host=host, port=port),
                grpc=Target(host=grpc_host, port=grpc_port, protocol="grpc", metadata=tuple(server.headers.items())),
                headers=server.headers,
                local=None,
            )
            place = RunningPlace(access)
        else:
            for repository in server.repositories:
                require_repository(repository)
            log = server.log or plan.output / "server.log"
            own = OwnServer(server.repositories, server.flags, log, server.environment)
            place = OwnPlace(stack.enter_context(own))
        outcome = Analysis(plan, place, lambda line: click.echo(line, err=True)).run()
    return _report(outcome, server.repositories, as_json=as_json)


def _report(outcome: AnalysisOutcome, repositories: Sequence[Path], *, as_json: bool) -> int:
    from tpy_tools.analyze.report import comparison, json_text, table, winner, write_files

    if not outcome.rows:
        click.echo("nothing was measured", err=True)
        return _INTERRUPTED if outcome.interrupted else 1
    click.echo(json_text(outcome).decode() if as_json else table(outcome))
    best = winner(outcome)
    if as_json:
        pass
    elif best is None:
        click.echo(f"\nNo configuration meets the constraints: {outcome.plan.goal}.")
    else:
        click.echo(f"\nBest for {outcome.plan.goal}: {best.point.candidate}")
        click.echo("\n".join(comparison(outcome, best)))
    files = write_files(outcome, repositories)
    click.echo("written: " + ", ".join(str(file) for file in files), err=as_json)
    if outcome.lost:
        click.echo(f"tpy: error: the server was lost: {outcome.lost}; these results are incomplete", err=True)
    if outcome.interrupted:
        click.echo("interrupted; run the same command to resume", err=True)
        return _INTERRUPTED
    return 1 if outcome.lost or best is None else 0
