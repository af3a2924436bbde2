"""Runs an analysis: loads each configuration, measures it, keeps the rows."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec
import orjson

from tpy.config import ModelConfig, to_json
from tpy.limits import loading as limits
from tpy_tools.analyze.core.checkpoint import CheckpointError, header_line, read_checkpoint, row_line
from tpy_tools.analyze.core.fields import FieldError
from tpy_tools.analyze.core.goal import Row, average
from tpy_tools.analyze.core.optuna_search import optuna
from tpy_tools.analyze.core.search import Search, brute, quick
from tpy_tools.analyze.core.space import REQUEST_BATCH, CandidateConfig, Point, Space, changed, is_served, make_space, read
from tpy_tools.analyze.measuring import NotAsAsked, level_line, level_of, meter_of, row_of
from tpy_tools.analyze.places import RunningPlace, ServerPlace
from tpy_tools.analyze.plan import AnalysisError, AnalysisPlan, Profile
from tpy_tools.analyze.server import ServedModels
from tpy_tools.load import ServerError, measure_together


class AnalysisOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured. `base` are the default configurations; `interrupted` and `lost` say why it ended early."""

    plan: AnalysisPlan
    space: Space
    base: Mapping[str, ModelConfig]
    rows: tuple[Row, ...]
    reused: int = 0
    interrupted: bool = False
    lost: str = ""

    @property
    def default(self) -> Row | None:
        """The best row of the configuration as it is."""
        ranked = self.plan.goal.ranked(row for row in self.rows if row.point.candidate == CandidateConfig())
        return ranked[0] if ranked else None


class ServerGone(Exception):
    """The server is lost in the middle of the search."""


class Analysis:
    """One analysis on one server."""

    def __init__(self, plan: AnalysisPlan, place: ServerPlace, progress: Callable[[str], None]) -> None:
        self._plan = plan
        self._place = place
        self._progress = progress
        self._loaded: CandidateConfig | None = None
        self._was_loaded: dict[str, ModelConfig | None] = {}
        """The configurations of the models before the analysis, None: not loaded."""

        self._base: dict[str, ModelConfig] = {}
        self._space = Space(dimensions=(), concurrencies=())
        self._rows: dict[Point, Row] = {}
        self._measured = 0
        self._members: dict[str, tuple[str, ...]] = {}

    def run(self) -> AnalysisOutcome:
        """Search. Ctrl-C ends it with what was measured. Raises AnalysisError when it cannot begin."""
        interrupted, lost, reused = False, "", 0
        try:
            self._begin()
            self._rows, file = self._open_checkpoint()
            reused = self._measured = len(self._rows)
            if reused:
                self._progress(f"{reused} measurements of an earlier run are in {file}")
            with file.open("ab", buffering=0) as checkpoint:
                self._drive(self._search(), lambda row: checkpoint.write(row_line(row)))
        except KeyboardInterrupt:
            interrupted = True
        except ServerGone as error:
            lost = str(error)
        finally:
            self._restore()
        return AnalysisOutcome(
            plan=self._plan,
            space=self._space,
            base=self._base,
            rows=tuple(self._rows.values()),
            reused=reused,
            interrupted=interrupted,
            lost=lost,
        )

    def _search(self) -> Search:
        plan = self._plan
        match plan.search:
            case "brute":
                return brute(self._space)
            case "optuna":
                return optuna(self._space, plan.goal, self._base, plan.optuna)
        return quick(self._space, plan.goal)

    def _drive(self, search: Search, keep: Callable[[Row], object]) -> None:
        """Send the search the rows that it asks for."""
        asked: set[Point] = set()
        point = next(search, None)
        while point is not None:
            row, again = self._rows.get(point), point in asked
            if row is None or (again and row.samples == 1):
                fresh = self._measure(point)
                row = fresh if row is None else average(row, fresh)
                keep(row)
                self._rows[point] = row
                self._measured += 1
                level = self._plan.level_text(point.concurrency)
                self._progress(level_line(self._measured, fresh, level + ", once more" * again))
            asked.add(point)
            try:
                point = search.send(row)
            except StopIteration:
                return

    def _begin(self) -> None:
        """Load the models as they are and make the space of their configurations."""
        plan, models = self._plan, self._place.access().models
        own = {}
        for profile in plan.profiles:
            self._members[profile.model] = self._load_profile(models, profile)
            for name in profile.cpu_only:
                if name in self._base and self._base[name].ensemble_scheduling is None:
                    self._base[name] = changed(self._base[name], "kind", "KIND_CPU")
            own.update(dict.fromkeys(self._members[profile.model], profile.wishes))
            own.update({name: wishes for name, wishes in profile.own.items() if name in self._members[profile.model]})
            for name in profile.own:
                if name not in self._members[profile.model]:
                    self._progress(f"{name} is not a member of {profile.model}: its settings are not used")
        try:
            self._space = make_space(self._base, {}, plan.concurrencies, own=own, request_batches=plan.batch_sizes)
            for one in self._space.dimensions:
                for value in one.values if one.knob != REQUEST_BATCH else ():
                    self._space.configs(self._base, self._space.candidate({one.label: value}))
        except FieldError as error:
            raise AnalysisError(str(error)) from None
        for note in self._space.notes:
            self._progress(note)
        self._note_size()

    def _load_profile(self, models: ServedModels, profile: Profile) -> tuple[str, ...]:
        """Load a model and its members. Returns all of them."""
        try:
            top = self._config_of(models, profile.model)
            steps = top.ensemble_scheduling.step if top.ensemble_scheduling is not None else ()
            members = tuple(dict.fromkeys((*profile.members, *(step.model_name for step in steps))))
            self._base |= {profile.model: top, **{name: self._config_of(models, name) for name in members}}
        except ServerError as error:
            raise AnalysisError(f"model '{profile.model}' cannot be analyzed: {error}") from error
        return (profile.model, *members)

    def _note_size(self) -> None:
        plan = self._plan
        if plan.search != "brute":
            return
        count = sum(1 for _ in self._space.all())
        points = count * len(plan.concurrencies)
        if points > limits.ANALYZE_POINTS_MAX:
            raise AnalysisError(
                f"{count} configurations at {len(plan.concurrencies)} levels of load are more than "
                f"{limits.ANALYZE_POINTS_MAX} measurements; use --search quick, or fewer values"
            )
        minutes = points * 4 * plan.profiles[0].load.window_s / 60
        self._progress(f"{count} configurations, {points} measurements: {minutes:.0f} min or more")

    def _config_of(self, models: ServedModels, name: str) -> ModelConfig:
        if name in self._base:
            return self._base[name]
        config = models.config(name)
        self._was_loaded[name] = config
        if config is None:
            models.load(name)
            config = models.config(name)
        if config is None:
            raise AnalysisError(f"model '{name}' is loaded, but has no configuration")
        return config

    def _open_checkpoint(self) -> tuple[dict[Point, Row], Path]:
        """The rows of an earlier run, and the file that goes on behind them."""
        plan = self._plan
        file = (plan.checkpoints or plan.output) / "checkpoint.jsonl"
        configs = orjson.dumps({name: to_json(config) for name, config in self._base.items()}, option=orjson.OPT_SORT_KEYS)
        loads = []
        for profile in plan.profiles:
            data = profile.load.input_data
            if data not in ("zero", "random"):
                data = hashlib.sha256(Path(data).read_bytes()).hexdigest()
            loads.append(msgspec.to_builtins(msgspec.structs.replace(profile.load, input_data=data, batch_sizes=())))
        measured = {
            "model": ",".join(profile.model for profile in plan.profiles),
            "configuration": hashlib.sha256(configs).hexdigest(),
            "load": orjson.dumps(loads).decode(),
            "level": "requests per second" if plan.by_rate else "clients",
            "request_batch": str(plan.batch_sizes[0]),
        }
        try:
            content = file.read_bytes() if file.exists() else b""
            rows, whole = read_checkpoint(content, measured)
            if whole < len(content) or not content:
                file.write_bytes(content[:whole] or header_line(measured))
        except CheckpointError as error:
            raise AnalysisError(f"{file}: {error}; remove it, or name another folder with --output") from None
        except OSError as error:
            raise AnalysisError(f"{file}: {error.strerror}") from None
        return rows, file

    def _measure(self, point: Point) -> Row:
        """One row. Raises ServerGone."""
        profiles, results = self._plan.profiles, []
        problem = ""
        try:
            if self._loaded != point.candidate:
                self._loaded = None
                self._load(point.candidate)
                self._loaded = point.candidate
            access = self._place.access()
            meters = [meter_of(profile, access, point) for profile in profiles]
            results = measure_together(meters, level_of(profiles[0], point, by_rate=self._plan.by_rate))
            if any(result.interrupted for result in results):
                raise KeyboardInterrupt
            problem = next((result.lost for result in results if result.lost), "")
        except (ServerError, NotAsAsked) as error:
            problem = str(error)
        if problem:
            ended = self._place.recover()
            self._loaded = None if ended else self._loaded
            if not ended and (results or not self._is_live()):
                raise ServerGone(problem)
            return Row(point=point, problem=f"{ended}: {problem}" if ended else problem)
        memory = {profile.model: access.models.memory_mb(self._members[profile.model]) for profile in profiles}
        if access.local is not None and not self._plan.goal.names("cpu_used_ram"):
            for one in memory.values():
                one.pop("CPU", None)  # the growth during a load, which says little where others were loaded before
        by_model = {profile.model: result for profile, result in zip(profiles, results, strict=True)}
        return row_of(point, by_model, memory, empty_bytes=access.empty_bytes)

    def _load(self, candidate: CandidateConfig) -> None:
        """Load the models with a candidate's configuration, and see that the server took it."""
        if self._plan.goal.names("cpu_used_ram"):
            self._place.renew()
        models = self._place.access().models
        configs = self._space.configs(self._base, candidate)
        # Members first: an ensemble is loaded with the members that are loaded.
        for name, config in reversed(configs.items()):
            models.load(name, config)
        for one in self._space.dimensions:
            if one.knob == REQUEST_BATCH:
                continue
            served = models.config(one.model)
            if not is_served(served, configs[one.model], one.knob):
                got = None if served is None else read(served, one.knob)
                raise NotAsAsked(f"the server made {one.label} {got} of {read(configs[one.model], one.knob)}")

    def _is_live(self) -> bool:
        try:
            self._place.access().models.config(self._plan.profiles[0].model)
        except ServerError:
            return False
        return True

    def _restore(self) -> None:
        """Leave the models of a running server as they were."""
        if not isinstance(self._place, RunningPlace):
            return
        models = self._place.access().models
        try:
            for name, config in reversed(self._was_loaded.items()):
                if config is not None:
                    models.load(name, config)
            for name, config in self._was_loaded.items():
                if config is None:
                    models.unload(name)
        except ServerError as error:
            self._progress(f"the models could not be restored: {error}")
