"""Repository agents, in C and in Python: a control plane on a directory, with a fake data plane."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.control import disk as disk_of_tests
from tests.control.disk import Disk, make_model, write
from tests.control.world import CONFIG, load
from tests.native.compiled import agent_library
from tpy.errors import TpyError
from tpy.ids import ModelId
from tpy.messages import ModelState
from tpy.state import ObservedKey
from tpy_control import ControlMode

PYTHON_AGENT = """
import os
import shutil

from tpy.repository_agent import AgentAction


class Agent:
    def act(self, action, model):
        with open(model.parameters["journal"], "a") as journal:
            print(model.parameters["by"], action.name, file=journal)
        if action is AgentAction.LOAD:
            target = model.acquire()
            shutil.copytree(model.directory, target, dirs_exist_ok=True)
            (target / "1" / "model.bin").write_bytes((target / "1" / "model.bin").read_bytes().upper())
            model.use(target)
            if model.parameters.get("behaviour") == "raise":
                raise ValueError("no such key")


class Relocating:
    # notes which agents the configuration names, and leaves the one of its parameter, or none

    def act(self, action, model):
        listed = model.config.get("model_repository_agents", {}).get("agents", [])
        with open(model.parameters["journal"], "a") as journal:
            print(action.name, *(agent["name"] for agent in listed), file=journal)
        if action is AgentAction.LOAD:
            target = model.acquire()
            shutil.copytree(model.directory / "1", target / "1")
            if "leaves" in model.parameters:
                (target / "config.pbtxt").write_text(model.parameters["leaves"])
            model.use(target)
"""


class Agents:
    """A model `m` with agents; what they were told, and the files that are served."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.disk = Disk(folder / "repository")
        monkeypatch.setattr(disk_of_tests, "PATIENCE_S", 120)  # each test starts processes
        self.scratch = folder / "scratch"
        self.scratch.mkdir()
        self.journal = folder / "journal"
        self.model = make_model(folder / "repository")
        self.options: dict[str, Any] = {
            "scratch_directory": self.scratch,
            "agent_command": (sys.executable, "-m", "tpy_data.agents", str(agent_library(folder / "agents"))),
            "agent_timeout_s": 20,
        }
        site = folder / "site"
        write(site / "upper_agent.py", PYTHON_AGENT)
        write(site / "upper-1.dist-info" / "METADATA", "Name: upper\nVersion: 1\n")
        write(
            site / "upper-1.dist-info" / "entry_points.txt",
            "[tpy.repository_agents]\nupper = upper_agent:Agent\nmove = upper_agent:Relocating\n",
        )
        monkeypatch.setenv("PYTHONPATH", str(site))

    def ask_for(self, *agents: tuple[str, dict[str, str]]) -> None:
        texts = []
        for name, parameters in agents:
            pairs = {"journal": str(self.journal), **parameters} if name != "checksum" else parameters
            listed = ", ".join(f'{{ key: "{key}" value: "{value}" }}' for key, value in pairs.items())
            texts.append(f'{{ name: "{name}" parameters [ {listed} ] }}')
        write(self.model / "config.pbtxt", CONFIG + f"model_repository_agents {{ agents [ {', '.join(texts)} ] }}")

    def told(self) -> list[str]:
        return self.journal.read_text().splitlines() if self.journal.exists() else []

    async def wait_told(self, *lines: str) -> None:
        """A task of the control plane passes actions on."""
        await self._wait(lambda: self.told() == list(lines))

    async def wait_left(self, *names: str) -> None:
        """Folders go after the last action."""
        await self._wait(lambda: [path.name for path in self.left()] == list(names))

    async def _wait(self, holds: Callable[[], bool]) -> None:
        while not holds():  # noqa: ASYNC110  # on other processes
            await anyio.sleep(0.01)

    def served(self) -> bytes:
        """Returns the bytes that a backend would read."""
        (version,) = self.disk.store.snapshot().desired[ModelId("m")].versions.values()
        return (version.directory / "model.bin").read_bytes()

    def left(self) -> list[Path]:
        """The folders of agents, by number."""
        return sorted(path for path in self.scratch.glob("*/*"))


@pytest.fixture
def agents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Agents:
    return Agents(tmp_path, monkeypatch)


async def test_a_chain_of_agents_from_load_to_unload(agents: Agents) -> None:
    agents.ask_for(("shift", {"by": "1"}), ("upper", {"by": "2"}), ("checksum", {"MD5:1/model.bin": "0" * 32}))
    async with agents.disk.running(ControlMode.EXPLICIT, **agents.options) as control:
        with pytest.raises(TpyError, match="checksum agent: MD5 of "):
            await control.load(load("m"))
        assert agents.told() == ["1 LOAD", "2 LOAD", "2 LOAD_FAIL", "1 LOAD_FAIL"]
        assert agents.left() == []
        agents.journal.unlink()
        agents.ask_for(("shift", {"by": "1"}), ("upper", {"by": "2"}))
        await control.load(load("m"))
        assert agents.served() == bytes(byte + 1 for byte in b"weights").upper()
        await agents.wait_told("1 LOAD", "2 LOAD", "2 LOAD_COMPLETE", "1 LOAD_COMPLETE")
        generations = {key.generation for key in agents.disk.store.snapshot().observed}
        await control.load(load("m"))  # nothing has changed: neither agents nor backends see anything
        assert {key.generation for key in agents.disk.store.snapshot().observed} == generations
        await control.unload("m")
        complete = ("2 LOAD_COMPLETE", "1 LOAD_COMPLETE", "1 UNLOAD", "2 UNLOAD", "2 UNLOAD_COMPLETE", "1 UNLOAD_COMPLETE")
        await agents.wait_told("1 LOAD", "2 LOAD", *complete)
    assert list(agents.scratch.iterdir()) == []


async def test_each_agent_of_a_chain_reads_what_the_one_before_left(agents: Agents) -> None:
    """As in Triton's test of relocation, where one agent is in the chain several times."""
    other = "model_repository_agents { agents [ { name: 'other' } ] }"
    last = CONFIG.replace('"', "'").replace("\n", " ")
    agents.ask_for(
        ("move", {"leaves": other}), ("move", {}), ("move", {"leaves": "no: configuration"}), ("move", {"leaves": last})
    )
    async with agents.disk.running(ControlMode.EXPLICIT, **agents.options) as control:
        await control.load(load("m"))
        await agents.wait_told(
            *("LOAD move move move move", "LOAD other", "LOAD", "LOAD"),
            *("LOAD_COMPLETE", "LOAD_COMPLETE", "LOAD_COMPLETE other", "LOAD_COMPLETE move move move move"),
        )
        assert agents.served() == b"weights"
    assert agents.told()[8:] == [
        *("UNLOAD move move move move", "UNLOAD other", "UNLOAD", "UNLOAD"),
        *("UNLOAD_COMPLETE", "UNLOAD_COMPLETE", "UNLOAD_COMPLETE other", "UNLOAD_COMPLETE move move move move"),
    ]


@pytest.mark.parametrize(
    ("name", "behaviour", "said"),
    [
        ("shift", "fail", ": the key is wrong .repository agent 'shift'.$"),
        ("shift", "crash", "the process of repository agent 'shift' was ended by signal 11"),
        ("shift", "hang", "repository agent 'shift' did not end within"),
        ("shift", "elsewhere", "/nonexistent/m, set by a repository agent, does not exist"),
        ("upper", "raise", ": ValueError: no such key .repository agent 'upper'.$"),
        ("nobody", "", "unable to find 'libtritonrepoagent_nobody.so' for repo agent 'nobody', searched: "),
    ],
)
async def test_the_old_version_serves_when_an_agent_misbehaves(agents: Agents, name: str, behaviour: str, said: str) -> None:
    agents.ask_for(("shift", {"by": "1"}))
    agents.options["agent_timeout_s"] = 8 if behaviour == "hang" else 20
    async with agents.disk.running(ControlMode.EXPLICIT, **agents.options) as control:
        await control.load(load("m"))
        before = agents.served()
        agents.ask_for((name, {"by": "2", "behaviour": behaviour}))
        with pytest.raises(TpyError, match=said):
            await control.load(load("m"))
        assert agents.served() == before
        assert [entry.state for entry in control.index()] == [ModelState.READY]
        assert [path.name for path in agents.left()] == ["1"]
        agents.ask_for(("shift", {"by": "3"}))  # the agent comes back
        await control.load(load("m"))
        assert agents.served() == bytes(byte + 3 for byte in b"weights")
    assert list(agents.scratch.iterdir()) == []


async def test_a_model_that_cannot_be_loaded_from_what_an_agent_left(agents: Agents) -> None:
    agents.ask_for(("shift", {"by": "1", "behaviour": "half"}))
    agents.disk.data.failing[("m", 1)] = "model.bin is not there"
    async with agents.disk.running(ControlMode.EXPLICIT, **agents.options) as control:
        with pytest.raises(TpyError, match=r"model\.bin is not there"):
            await control.load(load("m"))
        await agents.wait_told("1 LOAD", "1 LOAD_FAIL")
        agents.disk.data.failing.clear()
        agents.ask_for(("shift", {"by": "2"}))
        await control.load(load("m"))
        assert agents.served() == bytes(byte + 2 for byte in b"weights")


async def test_a_changed_model_takes_the_place_of_the_old_one(agents: Agents) -> None:
    agents.ask_for(("shift", {"by": "1"}))
    async with agents.disk.running(ControlMode.POLL, settle_ms=300, poll_ms=50, **agents.options):
        await agents.disk.wait_ready({1})
        write(agents.model / "1" / "model.bin", "others")
        await agents.disk.wait_ready({1}, generation=2)
        assert agents.served() == bytes(byte + 1 for byte in b"others")
        await agents.wait_told("1 LOAD", "1 LOAD_COMPLETE", "1 LOAD", "1 LOAD_COMPLETE", "1 UNLOAD", "1 UNLOAD_COMPLETE")
        assert agents.disk.data.state(ObservedKey(ModelId("m"), *_only(agents))) is ModelState.READY
        await agents.wait_left("2")


def _only(agents: Agents) -> tuple[Any, Any]:
    (version,) = agents.disk.store.snapshot().desired[ModelId("m")].versions.values()
    return version.version, version.generation


def test_the_process_of_an_agent_starts_without_a_backends_imports() -> None:
    """A hundred milliseconds, of each agent at each start."""
    listing = [sys.executable, "-c", "import sys, tpy_data.agents.hosting; print(*sys.modules)"]
    imported = subprocess.run(listing, check=True, capture_output=True, text=True).stdout.split()
    assert "tpy_data.agents.hosting" in imported
    assert not {"numpy", "trio", "tpy.backend", "tpy.messages"} & set(imported)
