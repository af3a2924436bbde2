"""Folders and files of a model repository that have no end, or that nobody writes."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import threading
from pathlib import Path

from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder

from .arena import Arena, Outcome, measured, serving

_DEPTH = 1500
_BOMB_FOLDERS = 26
_SERVED_S_MAX = 8.0
_DIGESTS_S = 3.0
_LABELLED = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
"""
_WARM_UP = """
model_warmup [ { name: "w" batch_size: 1 inputs { key: "INPUT" value {
  data_type: TYPE_FP32 dims: [ 3 ] input_data_file: "data" } } } ]
"""


def nested(version: Path) -> None:
    """1,500 folders, each in the one before."""
    # Each step from within the last: the whole path is longer than the system takes.
    subprocess.run(
        ["sh", "-c", f"i=0; while [ $i -lt {_DEPTH} ]; do mkdir d; cd -P d; i=$((i+1)); done"], cwd=version, check=True
    )


def link_bomb(version: Path) -> None:
    """26 folders with two links each to the next: 2**26 paths."""
    folders = [version.parent.parent.parent / "bomb" / str(number) for number in range(_BOMB_FOLDERS)]
    for folder in folders:
        folder.mkdir(parents=True)
    for folder, following in itertools.pairwise(folders):
        (folder / "a").symlink_to(following)
        (folder / "b").symlink_to(following)
    (version / "a").symlink_to(folders[0])


def proc_link(version: Path) -> None:
    """A link to what has links to itself."""
    (version / "p").symlink_to("/proc/self")


KINDS = {"nested": nested, "link_bomb": link_bomb, "proc_link": proc_link}


def hostile_folder(folder: Path, *, kind: str) -> Outcome:
    """It appears in a repository that is polled; then a good model appears, and must be served."""
    flags = ("--model-control-mode=poll", "--repository-poll-secs=1")
    with serving(folder, *flags) as arena:
        with measured(arena) as outcome:
            bait = ModelFolder(arena.repository, "bait").config(AFFINE_CONFIG).affine(1, 2.0)
            KINDS[kind](bait.path / "1")
            arena.within(_DIGESTS_S, lambda: False)
            ModelFolder(arena.repository, "late").config(AFFINE_CONFIG).affine(1, 3.0)
            _expect_served(arena, "late", 3.0)
        _note_state(arena, "bait")
    return outcome


def special_file(folder: Path, *, device: bool, warm_up: bool) -> Outcome:
    """Labels or warm-up data that are a pipe or an endless device: four such models are loaded, then a good one must load."""
    with serving(folder, "--model-control-mode=explicit", "--load-model=affine") as arena:
        for number in range(4):
            bait = ModelFolder(arena.repository, f"bait{number}")
            bait.config(AFFINE_CONFIG + _WARM_UP if warm_up else _LABELLED).affine(1, 2.0)
            target = bait.path / ("warmup/data" if warm_up else "labels.txt")
            target.parent.mkdir(exist_ok=True)
            if device:
                target.symlink_to("/dev/zero")
            else:
                os.mkfifo(target)
        ModelFolder(arena.repository, "late").config(AFFINE_CONFIG).affine(1, 3.0)
        with measured(arena) as outcome:
            statuses: list[int] = []
            threads = [threading.Thread(target=_load, args=(arena, f"bait{number}", statuses)) for number in range(4)]
            for thread in threads:
                thread.start()
            arena.within(0.5, lambda: False)
            _load(arena, "late", [])
            _expect_served(arena, "late", 3.0)
            for thread in threads:
                thread.join()
            outcome.note(f"loads answered {sorted(set(statuses))} (0: not within {_SERVED_S_MAX:.0f} s)")
    return outcome


def _load(arena: Arena, model: str, statuses: list[int]) -> None:
    statuses.append(arena.ask("POST", f"/v2/repository/models/{model}/load", {}, timeout_s=_SERVED_S_MAX)[0])


def _expect_served(arena: Arena, model: str, factor: float) -> None:
    """Wait for it, then ask it; it counts as lost when it is not served in time."""
    took = arena.within(_SERVED_S_MAX, lambda: arena.is_ready(model))
    if took is None:
        arena.outcome.lost += 1
        arena.outcome.note(f"another model is not served within {_SERVED_S_MAX:.0f} s")
    else:
        arena.infer(model, factor=factor)


def _note_state(arena: Arena, model: str) -> None:
    status, body = arena.ask("POST", "/v2/repository/index", {})
    if status == 200:
        found = [each.get("state", "unknown") for each in json.loads(body) if each["name"] == model]
        arena.outcome.note(f"its state is {found[0] if found else 'absent'}")
