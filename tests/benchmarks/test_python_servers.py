"""The comparison with other servers that run a function in Python. Needs none of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.measurement import Measurement, summarise
from benchmarks.python_servers.measuring import ROW, times
from benchmarks.python_servers.peers import PEERS, Peer, PeerPlan, reason_without
from benchmarks.report import cell_text
from benchmarks.servers.process import Ports


def rate(contender: str, value: float, *, number: int = 1, metric: str = "throughput") -> Measurement:
    return Measurement(
        row=ROW, case="1 connection", metric=metric, unit="/s", contender=contender, baseline="A", round=number, value=value
    )


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_peer_is_started_with_its_program_and_port(peer: Peer, tmp_path: Path) -> None:
    folder = tmp_path / "peer"

    command = PeerPlan(peer=peer, folder=folder, answer=b"[0.5]").command(Ports(http=12345, grpc=1, metrics=2))

    compile((folder / "served.py").read_text(), "served.py", "exec")
    assert command[0] == str(peer.python)
    assert "12345" in command
    assert str(folder) in " ".join(command)
    assert not any("{" in word for word in command)


def test_a_peer_that_cannot_be_started_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TPY_PEERS", str(tmp_path))
    litserve, *_, ray = PEERS
    versions = {"ray": "2.60.0"}

    assert litserve.version() is None
    assert str(tmp_path) in reason_without(litserve, versions, private=True)
    assert "not private" in reason_without(ray, versions, private=False)
    assert reason_without(ray, versions, private=True) == ""


def test_tpys_throughput_is_told_in_multiples_of_the_others() -> None:
    measured = [
        rate("tpy python worker", 8.0),
        rate("tpy python worker", 20.0, number=2),
        rate("LitServe", 2.0),
        rate("LitServe", 4.0, number=2),
        rate("LitServe", 9.0, metric="p99 latency"),
    ]

    told = times(measured)

    assert [(one.contender, one.round, one.value) for one in told] == [("LitServe", 1, 4.0), ("LitServe", 2, 5.0)]
    (line,) = summarise(told)
    assert cell_text(line.cell("LitServe"), line.baseline) == "4.50"
