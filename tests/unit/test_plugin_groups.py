"""Plug-ins of other packages, found by their entry points: caches, batching strategies, agents, repositories; and broken ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from tests.engine.fakes import ScriptedBackend, config, identity, rig
from tests.unit.test_command_table import install, tpy
from tpy.cli.cache_options import cache_options
from tpy.cli.parsing import UsageError
from tpy.clock import SystemClock
from tpy.config import ModelConfig
from tpy.config.model_config import DynamicBatching, ModelParameter, ResponseCache
from tpy.errors import InvalidArgument, TpyError, Unavailable
from tpy.repository_agent import AgentAction
from tpy_control.downloads import as_folders
from tpy_control.sources import HiddenEnvironment, RemoteOptions, parse_address
from tpy_control.sources.several import open_source
from tpy_data.agents.contract import Opened
from tpy_data.agents.hosting import find_agent
from tpy_data.cache.options import CacheOptions, StoreOptions
from tpy_data.executors.executor import ThreadExecutor
from tpy_data.schedulers.core import Ticket
from tpy_data.strategies import FoundStrategy, find_strategy, open_strategy

SHELF = """
from tpy.errors import InvalidArgument

class Shelf:
    threads_max = 1
    patience_ns = 10**10

    def __init__(self, name):
        self.name = name
        self.kept = {}

    def get(self, key, deadline_s):
        return self.kept.get(key)

    def put(self, key, data, deadline_s):
        self.kept[key] = data

    def close(self):
        self.kept.clear()

class Kind:
    has_own_metrics = False

    def read(self, chosen):
        if chosen.settings["place"] == "full":
            raise InvalidArgument("the shelf is full")
        return chosen.settings["place"]

    def open(self, options, metrics):
        if options == "lost":
            raise KeyError("lost")
        return Shelf(options)

SHELF = Kind()
"""

STRATEGY = """
class ById:
    def __init__(self, name):
        self.log = [name]

    def begin(self):
        self.log.append("begin")

    def include(self, ticket):
        if ticket.signature == "bad":
            raise ValueError("no such ticket")
        return ticket.signature == "good"

    def end(self):
        self.log.append("end")

    def close(self):
        raise RuntimeError(" ".join(self.log))

def open(library, config, version, directory):
    assert library is None
    if config.name == "lost":
        raise KeyError("lost")
    return ById(f"{config.name} {version} {directory.name}")
"""

AGENT = """
class Agent:
    def act(self, action, model):
        (model.acquire() / "done").write_text(action.name)
        model.use(model.acquire())
"""

BROKEN = [
    (None, "ModuleNotFoundError: No module named 'tpy_broken'"),
    ("import sys\nsys.exit(3)", "SystemExit: 3"),
    ("raise ValueError('no licence')", "ValueError: no licence"),
]


def _chosen(*texts: str) -> CacheOptions | None:
    return cache_options(texts, 0, {})


async def test_a_cache_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "shelf = tpy_other:SHELF", SHELF, group="tpy.caches")
    monkeypatch.syspath_prepend(tmp_path)
    served = config(response_cache=ResponseCache(enable=True))
    async with rig(backend=ScriptedBackend(identity), executor=ThreadExecutor(), cache=_chosen("shelf,place=left")) as r:
        await r.serve(served, directory=tmp_path)
        for _ in range(2):
            await r.submit().wait()
        (statistics,) = r.plane.statistics("m")
        assert (statistics.inference.cache_miss.count, statistics.inference.cache_hit.count) == (1, 1)
        assert r.plane.cache_statistics() is not None
    monkeypatch.delitem(sys.modules, "tpy_other")


def test_what_a_cache_of_another_package_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "shelf = tpy_refusing:SHELF", SHELF, name="tpy-refusing", group="tpy.caches")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"^the shelf is full$"):
        _chosen("shelf,place=full")
    with pytest.raises(UsageError, match=r"^--cache-config: cache 'shelf': KeyError: 'place'$"):
        _chosen("shelf,room=1")
    with pytest.raises(UsageError, match=r"without a library are 'local' and 'redis' and 'shelf'$"):
        _chosen("nosuch,a=1")


async def test_a_cache_that_cannot_be_opened_ends_the_start_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "shelf = tpy_lost:SHELF", SHELF, name="tpy-lost", group="tpy.caches")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.RaisesGroup(pytest.RaisesExc(Unavailable, match=r"^the cache 'shelf' cannot be opened: KeyError: 'lost'$")):
        async with rig(executor=ThreadExecutor(), cache=_chosen("shelf,place=lost")):
            pass


@pytest.mark.parametrize(("source", "problem"), [*BROKEN, ("X = 1", "TypeError: expected a CacheKind, got int without has")])
def test_a_cache_that_cannot_be_loaded_leaves_the_others_alone(
    source: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken = tpy_broken:X", source, name="tpy-broken", group="tpy.caches")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tpy_broken", raising=False)
    with pytest.raises(UsageError) as refused:
        _chosen("broken,a=1")
    assert str(refused.value).startswith(f"the cache 'broken' of tpy-broken 1.0 (tpy_broken:X) cannot be loaded: {problem}")
    assert str(refused.value).endswith("; repair or remove the package")
    redis = _chosen("redis,host=h,port=1")
    assert isinstance(redis, StoreOptions)
    assert redis.name == "redis"
    sys.modules.pop("tpy_broken", None)


def test_two_packages_cannot_offer_one_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "redis = tpy_other:SHELF", SHELF, group="tpy.caches")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UsageError, match=r"both offer the cache 'redis'; remove one of the packages$"):
        _chosen("redis,host=h,port=1")
    assert _chosen("local,size=1") is not None


def _model(name: str, strategy: str) -> ModelConfig:
    return config(
        name=name,
        dynamic_batching=DynamicBatching(),
        parameters={"TRITON_BATCH_STRATEGY_PATH": ModelParameter(string_value=strategy)},
    )


def test_a_batching_strategy_of_another_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(tmp_path, "by_id = tpy_by_id:open", STRATEGY, name="tpy-by-id", group="tpy.strategies")
    monkeypatch.syspath_prepend(tmp_path)
    model = _model("m", "by_id")
    found = find_strategy(model, tmp_path, ())
    assert found == FoundStrategy(name="by_id")
    strategy = open_strategy(found, model, 3, tmp_path)
    strategy.begin()
    asked = [strategy.include(Ticket(signature=each)) for each in ("good", "other", "bad")]
    strategy.end()
    assert asked == [True, False, True], "one that fails does not keep requests out of batches"
    [line] = caplog.messages
    assert line == "Custom batching function failed: ValueError: no such ticket"
    with pytest.raises(RuntimeError, match=f"^m 3 {tmp_path.name} begin end$"):
        strategy.close()
    with pytest.raises(Unavailable, match=r"^the batching strategy 'by_id' cannot be opened: KeyError: 'lost'$"):
        open_strategy(found, msgspec.structs.replace(model, name="lost"), 1, tmp_path)
    with pytest.raises(InvalidArgument, match="Batching library path not found"):
        find_strategy(_model("m", "by_name"), tmp_path, ())


@pytest.mark.parametrize(("source", "problem"), BROKEN)
def test_a_batching_strategy_that_cannot_be_loaded(
    source: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken = tpy_broken:open", source, name="tpy-broken", group="tpy.strategies")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tpy_broken", raising=False)
    model = _model("m", "broken")
    found = find_strategy(model, tmp_path, ())
    assert found is not None
    with pytest.raises(Unavailable) as refused:
        open_strategy(found, model, 1, tmp_path)
    said = f"the batching strategy 'broken' of tpy-broken 1.0 (tpy_broken:open) cannot be loaded: {problem}"
    assert refused.value.message == f"{said}; repair or remove the package"


@pytest.mark.parametrize("group", ["tpy.agents", "tpy.repository_agents"])
def test_an_agent_of_another_package(group: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name of the group, and under the one that it had at first."""
    install(tmp_path, "mark = tpy_agent:Agent", AGENT, name="tpy-agent", group=group)
    monkeypatch.syspath_prepend(tmp_path)
    agent = find_agent("mark", tmp_path)
    scratch = str(tmp_path / "scratch")
    opened = Opened(name="m", location=str(tmp_path), mutable_location=scratch, config="{}", parameters={})
    model = agent.open(opened)
    model.act(AgentAction.LOAD)
    assert (Path(model.location()) / "done").read_text() == "LOAD"


@pytest.mark.parametrize(("source", "problem"), BROKEN)
def test_an_agent_that_cannot_be_loaded(
    source: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken = tpy_broken:Agent", source, name="tpy-broken", group="tpy.agents")
    install(tmp_path, "mark = tpy_agent:Agent", AGENT, name="tpy-agent", group="tpy.agents")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tpy_broken", raising=False)
    with pytest.raises(TpyError) as refused:
        find_agent("broken", tmp_path)
    said = f"the repository agent 'broken' of tpy-broken 1.0 (tpy_broken:Agent) cannot be loaded: {problem}"
    assert refused.value.message == f"{said}; repair or remove the package"
    find_agent("mark", tmp_path).close()


SOURCE = """
from pathlib import Path
from tpy.errors import InvalidArgument
from tpy_control.address import RemoteAddress
from tpy_control.sources.disk import DiskSource

class Kind:
    def parse(self, text):
        if text == "memo://bad":
            raise InvalidArgument("no such memo")
        if text == "memo://lost":
            raise KeyError("lost")
        return RemoteAddress(text=text)

    def open(self, addresses, options, clock):
        if addresses[0].text == "memo://shut":
            raise KeyError("shut")
        for address in addresses:
            version = options.folder_of(address) / "m" / "1"
            version.mkdir(parents=True)
            (version / "weights").write_text(address.text + options.environment["WHO"])
        return DiskSource([options.folder_of(address) for address in addresses])

MEMO = Kind()
"""


def test_a_repository_of_another_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "memo = tpy_memo:MEMO", SOURCE, name="tpy-memo", group="tpy.sources")
    monkeypatch.syspath_prepend(tmp_path)
    folder = tmp_path / "folder"
    folder.mkdir()
    texts = ["memo://one", "memo://two", str(folder)]
    with as_folders([parse_address(text) for text in texts], {"WHO": "ada"}) as folders:
        assert list(folders) == texts
        assert (folders["memo://two"] / "m/1/weights").read_text() == "memo://twoada"
        assert folders[str(folder)] == folder
    assert not folders["memo://two"].exists()
    options = RemoteOptions(directory=tmp_path / "copies", environment=HiddenEnvironment({"WHO": "ada"}))
    with pytest.raises(Unavailable, match=r"^memo://shut cannot be opened: KeyError: 'shut'$"):
        open_source([parse_address("memo://shut"), folder], options, SystemClock())
    with pytest.raises(InvalidArgument, match=r"^no such memo$"):
        parse_address("memo://bad")
    with pytest.raises(Unavailable, match=r"^--model-repository memo://lost: KeyError: 'lost'$"):
        parse_address("memo://lost")
    with pytest.raises(InvalidArgument, match=r"begins with as://, gs://, memo://, oss://, s3://$"):
        parse_address("hf://x/y")


@pytest.mark.parametrize(("source", "problem"), [*BROKEN, ("X = 1", "TypeError: expected a SourceKind, got int without parse")])
def test_a_repository_kind_that_cannot_be_loaded_leaves_the_others_alone(
    source: str | None, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "broken = tpy_broken:X", source, name="tpy-broken", group="tpy.sources")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tpy_broken", raising=False)
    with pytest.raises(Unavailable) as refused:
        parse_address("broken://x")
    said = f"the repository scheme 'broken' of tpy-broken 1.0 (tpy_broken:X) cannot be loaded: {problem}"
    assert refused.value.message.startswith(said)
    assert refused.value.message.endswith("; repair or remove the package")
    assert str(parse_address("s3://bucket/models")) == "s3://bucket/models"
    assert parse_address("models") == Path("models")


def test_a_server_says_which_repository_scheme_is_broken(tmp_path: Path) -> None:
    install(tmp_path, "broken = tpy_broken:X", "raise ValueError('no licence')", name="tpy-broken", group="tpy.sources")
    done = tpy(tmp_path, "serve", "--model-repository=broken://x")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "the repository scheme 'broken' of tpy-broken 1.0 (tpy_broken:X) cannot be loaded: ValueError: no licence" in line


CHECKS = """
from tpy.doctor import DoctorFinding, Verdict

def lamps():
    yield DoctorFinding("lamps", Verdict.ERROR, "all are off", "switch one on")

def dark():
    yield DoctorFinding("before", Verdict.OK, "fine")
    raise ValueError("no lamp")

def wrong():
    return ["lamp"]
"""


def test_checks_of_the_doctor_from_another_package(tmp_path: Path) -> None:
    entries = "\n".join(f"{name} = tpy_lamps:{name}" for name in ("dark", "gone", "lamps", "wrong"))
    install(tmp_path, entries, CHECKS, name="tpy-lamps", group="tpy.doctor")
    done = tpy(tmp_path, "doctor", "--http-port=0", "--grpc-port=0", "--metrics-port=0")
    lines = done.stdout.splitlines()
    assert done.returncode == 1, "a server would not start, says the package"
    assert "error    lamps: all are off; switch one on" in lines
    assert "ok       before: fine" in lines
    assert "warning  check dark: ValueError: no lamp; repair or remove the package tpy-lamps 1.0" in lines
    [gone] = [line for line in lines if "check gone" in line]
    assert "the check of tpy doctor 'gone' of tpy-lamps 1.0 (tpy_lamps:gone) cannot be loaded: AttributeError: " in gone
    [wrong] = [line for line in lines if "check wrong" in line]
    assert wrong.startswith("warning  check wrong: TypeError: expected a DoctorFinding, got str; ")
    assert any(line.startswith("ok       compiled plug-ins: ") for line in lines)
    assert any(line.startswith(("ok       disk of", "warning  disk of")) for line in lines), "those after them, too"


@pytest.mark.parametrize("name", ["tpy_data.native", "tpy_native"])
def test_the_headers_are_found_under_both_names(name: str) -> None:
    """The first is in build scripts of users."""
    printed = subprocess.run([sys.executable, "-m", name, "include"], capture_output=True, text=True, check=True).stdout
    assert (Path(printed.strip()) / "triton/core/tritonbackend.h").is_file()
