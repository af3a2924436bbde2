"""Places of fields in a configuration that is JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.config import ConfigError, check_text
from tpy.config.json_places import json_places, parse_located_json

TEXT = """{
 "name": "m", "maxBatchSize": 4,
 "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1, -5]},
   {"name": "y",
    "data_type": "TYPE_INT8", "dims": [2]}],
 "parameters": {"a": {"string_value": "1"},
    'b.c': {stringValue: "2"},},
 "dynamicBatching": {"priorityQueuePolicy": {"2": {"maxQueueSize": 1}}},
 "backend": "identity"
}"""


def test_every_field_has_its_place() -> None:
    places = json_places(TEXT)
    assert places["max_batch_size"] == (2, 15)
    assert places["input[0].dims[1]"] == (3, 64)
    assert places["input[1]"] == (4, 4)
    assert places["input[1].data_type"] == (5, 5)
    assert places['parameters["b.c"].string_value'] == (7, 13)
    assert places["dynamic_batching.priority_queue_policy[2].max_queue_size"] == (8, 52)
    assert places["backend"] == (9, 2)


@pytest.mark.parametrize(
    ("old", "new", "place", "field"),
    [
        ("TYPE_INT8", "TYPE_INT9", (5, 5), "input[1].data_type"),
        ('"backend"', '"backends"', (9, 2), "backends"),
        ('"m",', '"m"', (2, 14), ""),
        ('"maxBatchSize": 4', '"maxBatchSize": "four"', (2, 15), "max_batch_size"),
    ],
)
def test_what_cannot_be_read_is_located(old: str, new: str, place: tuple[int, int], field: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_located_json(TEXT.replace(old, new))
    (problem,) = caught.value.problems
    assert ((problem.line, problem.column), problem.field) == (place, field)


def test_what_contradicts_itself_is_located() -> None:
    problems = check_text(TEXT, path="", directory_name="m", version_files=["model"], as_json=True)
    assert [(problem.line, problem.column, problem.field) for problem in problems] == [(3, 64, "input[0].dims[1]")]


@given(
    st.recursive(
        st.none() | st.integers() | st.text(max_size=3),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner),
    )
)
def test_any_json_has_places(value: object) -> None:
    text = json.dumps(value, indent=1)
    lines = text.split("\n")
    for line, column in json_places(text).values():
        assert lines[line - 1][column - 1 :].strip()


@given(st.text(alphabet='{}[],:"ab1 \n', max_size=40))
def test_broken_text_has_what_places_it_has(text: str) -> None:
    for line, column in json_places(text).values():
        assert text.split("\n")[line - 1][column - 1 :]
