"""Growth of costs: the curves, their page and their plots, from made-up points; the scheduling part for real, for a moment."""

from __future__ import annotations

import importlib.util
import socket
import threading
from pathlib import Path

import msgspec
import pytest

from benchmarks.growth.curves import CURVES, GrowthReport, series_of
from benchmarks.growth.models import write_rows_identity
from benchmarks.growth.page import BEGIN, END, markdown, with_growth
from benchmarks.growth.plots import draw
from benchmarks.growth.scheduling import CancelledQueue, Queue, Sequences, cost_us
from benchmarks.growth.served import idle_connections
from benchmarks.http_exchange import HttpRequest
from benchmarks.load import LoadFailed
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.default import DefaultCore
from tpy_data.schedulers.core.dynamic import DynamicCore
from tpy_data.schedulers.core.dynamic_options import DynamicOptions
from tpy_data.schedulers.core.sequence_options import SequenceOptions

MADE_UP = b"""{
  "machine": {"date": "2026-01-02 03:04 UTC", "processor": "some CPU", "cores": 2, "memory_gb": 8.0, "kernel": "6.1",
    "python": "3.11", "versions": {"tpy commit": "abc"}, "load_before": 0.25},
  "rounds": 3, "seconds": 1, "failures": ["The curve size is not complete: no server."],
  "points": [
    {"curve": "queue", "series": "one", "x": 1000, "y": 3.0}, {"curve": "queue", "series": "one", "x": 10, "y": 2.0},
    {"curve": "queue", "series": "one", "x": 10, "y": 9.0}, {"curve": "queue", "series": "one", "x": 10, "y": 1.0},
    {"curve": "queue", "series": "two", "x": 50000, "y": 123.4}, {"curve": "size", "series": "one", "x": 64, "y": 20.0},
    {"curve": "size", "series": "one", "x": 16777216, "y": 20000.0}
  ]}"""


def made_up() -> GrowthReport:
    return msgspec.json.decode(MADE_UP, type=GrowthReport)


def test_a_series_has_the_medians_of_its_rounds_in_order() -> None:
    assert series_of(made_up().points, "queue") == {"one": {10: 2.0, 1000: 3.0}, "two": {50_000: 123.4}}
    assert list(series_of(made_up().points, "queue")["one"]) == [10, 1000]
    assert series_of(made_up().points, "batch") == {}


def test_the_page_has_a_table_and_a_plot_for_each_curve_that_was_measured() -> None:
    text = markdown(made_up(), {"queue": "plots/queue.svg"})

    assert text.startswith(BEGIN)
    assert text.endswith(END + "\n")
    assert "some CPU" in text
    assert "| requests waiting | 10 | 1,000 | 50,000 |" in text
    assert "| one | 2.00 | 3.00 | - |" in text
    assert "| two | - | - | 123 |" in text
    assert text.count("](plots/") == 1
    assert "**Batch size**" not in text
    assert "The curve size is not complete" in text


def test_only_the_curves_of_a_page_are_replaced() -> None:
    page = f"before\n{BEGIN}\nold\n{END}\nafter\n"

    assert with_growth(page, f"{BEGIN}\nnew\n{END}\n") == f"before\n{BEGIN}\nnew\n{END}\nafter\n"
    with pytest.raises(ValueError, match="no place for curves"):
        with_growth("nothing", "new")


def test_the_page_in_the_documentation_has_its_place() -> None:
    page = Path(__file__).parents[2] / "docs" / "explanation" / "performance.md"

    assert "new" in with_growth(page.read_text(encoding="utf-8"), "new")


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed: pip install matplotlib")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_plots_are_drawn_from_points_and_are_the_same_each_time(tmp_path: Path) -> None:
    first = draw(made_up(), tmp_path / "first")
    second = draw(made_up(), tmp_path / "second")

    assert list(first) == ["size", "queue"]
    for name, file in first.items():
        text = file.read_text()
        assert text == second[name].read_text()
        assert "<svg" in text
        assert "<dc:date>" not in text
        assert len(text) < 50_000
    assert "requests waiting" in first["queue"].read_text()


def test_names_of_curves_are_unique() -> None:
    names = [curve.name for curve in CURVES]

    assert len(set(names)) == len(names)


def test_a_queue_keeps_its_length() -> None:
    core = DefaultCore()
    queue = Queue(core, Ticket, 10)
    counts = [queue.turn() for _ in range(50)]

    assert all(counts)
    snapshot = core.snapshot()
    assert snapshot.queued + snapshot.executing == 10


def test_a_queue_of_batches_keeps_its_length() -> None:
    core = DynamicCore(DynamicOptions(batch_size_max=8, preferred=frozenset({8})))
    queue = Queue(core, Ticket, 100)
    counts = [queue.turn() for _ in range(20)]

    assert counts[-1] == 8
    snapshot = core.snapshot()
    assert snapshot.queued + snapshot.executing == 100


def test_cancelled_requests_are_replaced() -> None:
    core = DefaultCore()
    queue = CancelledQueue(core, Ticket, 30)
    queue.turn()
    queue.turn()

    assert core.snapshot().queued == 30


@pytest.mark.parametrize(
    ("slots", "active"),
    [(200, 200), (200, 64), (64, 200)],
)
def test_sequences_stay_alive_while_they_are_measured(slots: int, active: int) -> None:
    options = SequenceOptions(slots=slots)
    if slots == 200:
        batch = DynamicOptions(batch_size_max=64, preferred=frozenset({64}))
        options = msgspec.structs.replace(options, strategy=batch)
    work = Sequences(options, 200, active)

    assert all(work.turn() for _ in range(20))
    assert work.snapshot().sequences == 200
    assert cost_us(work, 0.001) > 0


@pytest.mark.parametrize("together", [False, True])
def test_the_model_of_rows_joins_them_when_asked(tmp_path: Path, together: bool) -> None:
    write_rows_identity(tmp_path, "rows", batch=8, together=together)

    config = (tmp_path / "rows" / "config.pbtxt").read_text()
    assert "max_batch_size: 8" in config
    assert ("dynamic_batching" in config) == together
    assert (tmp_path / "rows" / "1" / "model.py").exists() == together


def test_silent_connections_that_are_closed_void_the_curve() -> None:
    request = HttpRequest(path="/", headers={}, body=b"")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_once() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

        thread = threading.Thread(target=answer_once)
        thread.start()
        with (
            pytest.raises(LoadFailed, match="closed one of 1 silent"),
            idle_connections(server.getsockname()[1], request, 1),
        ):
            thread.join()
