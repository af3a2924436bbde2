"""Processes that end: workers that are killed, and a server that is told to stop under load."""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

from tests.e2e.gated import metrics
from tests.e2e.server import ServerProcess, is_alive
from tests.e2e.waiting import wait_until

from .ledger import Ledger
from .load import Asks, Load, copied, loading, usual
from .models import write_journal, write_models

_KILLS = 6
_WORKERS = 3
"""Of the models: two of `copy`, one of `count`."""

_DIED = r"is not healthy|not at ready state|has no available versions|no instance of the model is left"


def kill_workers(folder: Path) -> str:
    """Kill workers at random; wait only until the server has answered a little more."""
    write_models(folder / "models")
    chance = random.Random(6)
    with ServerProcess(repositories=[folder / "models"]) as server:
        with loading(server) as load:
            ledger = load.ledger
            for _ in range(_KILLS):
                workers = wait_until(server.children)
                os.kill(chance.choice(workers), signal.SIGKILL)
                ledger.wait_answered(50, "affine", "sum")
                ledger.wait_answered(300)
            wait_until(lambda: len(server.children()) == _WORKERS)
            ledger.wait_answered(20, "affine", "copy", "chain", "sum", "count")
        ledger.check(refused=_DIED, refused_models=("copy", "chain", "count"))
        _balanced(server, ledger)
    return f"{_KILLS} kills: {ledger}"


def _balanced(server: ServerProcess, ledger: Ledger) -> None:
    """Compare the server's counts with its clients'; `affine` and `copy` are also asked by `chain`."""
    counted = metrics(server)
    pending = {series: value for series, value in counted.items() if series.startswith("nv_inference_pending_request_count")}
    assert not any(pending.values()), pending
    for model in ("chain", "sum", "count"):
        assert counted[f'nv_inference_request_success{{model="{model}",version="1"}}'] == ledger.answered[model], model
    served = counted['nv_inference_request_success{model="affine",version="1"}']
    asked = ledger.answered["affine"] + ledger.answered["chain"] + ledger.refusals("chain")
    assert ledger.answered["affine"] + ledger.answered["chain"] <= served <= asked


def stop_under_load(folder: Path) -> str:
    """SIGTERM. What a model was given is answered; what came too late is refused or its connection is closed unread."""
    write_models(folder / "models")
    write_journal(folder / "models", folder / "journal")
    answered: set[str] = set()
    ledger = Ledger()
    with ServerProcess(repositories=[folder / "models"]) as server:
        load = Load(server, ledger)
        for thread in range(4):
            for start in (load.over_http, load.over_grpc):
                number = 1000 * thread + (500 if start == load.over_grpc else 0)
                start([_noting(number, answered), *usual(number)])
        ledger.wait_answered(50, "affine", "copy", "chain", "sum", "journal")
        workers = server.children()
        server.process.send_signal(signal.SIGTERM)
        code = server.wait_end(20)
        load.stop()
        assert code == 0, f"exit code {code}"
        assert not [pid for pid in workers if is_alive(pid)]
    begun = (folder / "journal").read_text().split()
    unanswered = set(begun) - answered
    ledger.check(
        refused="(?i)server is stopping|server exiting|not at ready state|has no available versions",
        refused_models=_ALL,
        cut=True,
    )
    assert not unanswered, f"{len(unanswered)} requests were executed and not answered: {sorted(unanswered)[:5]}"
    assert len(begun) == len(set(begun))
    return f"{ledger}; {len(begun):,} executed by `journal`, all answered"


_ALL = ("affine", "copy", "chain", "sum", "journal")


def _noting(thread: int, answered: set[str]) -> Asks:
    """Ask `journal`, and note the ids of what was answered."""
    asks = copied("journal", thread)
    ask = next(asks)
    while True:
        went_well = yield ask
        if went_well:
            answered.add(ask.id)
        ask = asks.send(went_well)
