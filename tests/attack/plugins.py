"""Repository agents that misbehave: their own load fails or succeeds, and nobody else notices."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder
from tests.e2e.server import is_alive

from .arena import Outcome, measured, serving

_LINES = 40_000
_AGENT = """
import os
import pathlib
import signal
import time

from tpy.repository_agent import AgentAction


class HostileAgent:
    def act(self, action, model):
        if action is not AgentAction.LOAD:
            return
        kind = model.parameters["kind"]
        if kind == "floods":
            for _ in range({lines}):
                os.write(2, b"x" * 99 + b"\\n")
        if kind == "closes":
            os.closerange(0, 1024)
        if kind == "group":
            os.killpg(0, signal.SIGKILL)
        if kind == "forks" and (child := os.fork()):
            (pathlib.Path(__file__).parent / "children").open("a").write(f"{child}\\n")
        elif kind == "forks":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            time.sleep(3600)
        if kind == "moves":
            os.chdir("/")
            os.umask(0o777)
        if kind == "exits":
            os._exit(0)
"""
_LOADS = {"floods": 200, "closes": 500, "group": 500, "forks": 200, "moves": 200, "exits": 500}
"""The status of the load call."""


def hostile_agent(folder: Path, *, kind: str) -> Outcome:
    """An agent floods the log, closes all of its descriptors, kills its process group, leaves a child, moves to another folder
    and takes all rights away, or exits as if all were well, while its model loads."""
    site = folder / "site"
    info = site / "hostile-1.dist-info"
    info.mkdir(parents=True)
    children = site / "children"
    (site / "hostile.py").write_text(_AGENT.replace("{lines}", str(_LINES)))
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hostile\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tpy.repository_agents]\nhostile = hostile:HostileAgent\n")
    agents = f'model_repository_agents {{ agents [ {{ name: "hostile" parameters [ {{ key: "kind" value: "{kind}" }} ] }} ] }}'
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    flags = ("--model-control-mode=explicit", "--load-model=affine", "--load-model=copy")
    with serving(folder, *flags, environment={"PYTHONPATH": path}) as arena, measured(arena) as outcome:
        ModelFolder(arena.repository, "bait").config(AFFINE_CONFIG + agents).affine(1, 2.0)
        for _ in range(2):
            status, _ = arena.ask("POST", "/v2/repository/models/bait/load", {}, timeout_s=30.0)
            outcome.wrong += status != _LOADS[kind]
            outcome.note(f"load answered {status}")
        arena.infer("copy")
        forked = [int(pid) for pid in children.read_text().split()] if children.exists() else []
    if kind == "forks":
        left = [pid for pid in forked if is_alive(pid)]
        outcome.note(f"{len(left)} of {len(forked)} children left")
        outcome.wrong += not forked or len(left)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    return outcome
