"""JSON in pieces says what json.dumps says, and of much text no more than there is."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpy.frontends.http.codec import long_json
from tpy.frontends.http.codec.document import shown
from tpy.frontends.http.codec.long_json import pieces_of, write_long

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=9)
DOCUMENTS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner) | st.dictionaries(TEXTS | st.integers(), inner, max_size=4),
)


@given(DOCUMENTS, st.booleans(), st.sampled_from([None, 0, 1, 4]))
def test_pieces_are_those_of_the_whole(document: object, ascii_only: bool, indent: int | None) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_json, "_PIECE_CHARACTERS", 2)
        pieces = list(pieces_of(document, ascii_only=ascii_only, indent=indent))
    assert "".join(pieces) == json.dumps(document, ensure_ascii=ascii_only, indent=indent)


@pytest.mark.parametrize("document", [["é" * 600_000], ["é" * 1000] * 600, {"a": ({"b": "é" * 100_000},) * 6}])
def test_much_text_is_written_as_it_is(document: object) -> None:
    assert write_long(document) == json.dumps(document, ensure_ascii=False)
    assert write_long("é") == '"\\u00e9"'


def test_a_long_text_is_shown_in_part() -> None:
    assert shown("\n" * 1_000_000) == '"' + "\\n" * 40 + "... (999960 more characters)"
    assert shown("a\n") == '"a\\n"'
