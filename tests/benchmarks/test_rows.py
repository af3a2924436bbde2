"""Which rows run, and what the ONNX row computes."""

import pytest

from benchmarks.rows.onnx import settings_for, without_clients
from benchmarks.rows.registry import ROWS, rows_named


def test_rows_are_chosen_by_name_in_the_programs_order() -> None:
    assert [row.name for row in rows_named("start, json")] == ["json", "start"]


@pytest.mark.parametrize("names", ["", ",", "json,speed"])
def test_an_unknown_row_is_refused_with_the_names_there_are(names: str) -> None:
    with pytest.raises(ValueError, match=ROWS[0].name):
        rows_named(names)


def test_the_clients_time_is_left_out() -> None:
    # 2 cores for 10 s, of which clients took 4 core-seconds: 16 of 20 were left, so 8 s of the whole machine.
    assert without_clients(80, 10.0, 4.0, 2) == 10.0


def test_clients_are_kept_apart_only_where_there_are_two_cores() -> None:
    assert all(setting.client_cores is None for setting in settings_for((0,)))
    apart = [setting for setting in settings_for((2, 3, 5)) if setting.client_cores is not None]
    assert [(setting.server_cores, setting.client_cores) for setting in apart] == [((2,), (5,))]
