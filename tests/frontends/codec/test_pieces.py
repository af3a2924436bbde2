"""Large documents read in pieces: the same as read as a whole, whatever is in them."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpy import limits
from tpy.errors import InvalidArgument
from tpy.frontends.http.codec.cutting import load_in_pieces
from tpy.frontends.http.codec.json_data import read_json_data
from tpy.frontends.http.codec.json_text import parse_json
from tpy.frontends.http.codec.pieces import SIZES, ArraySizes, LongArray, LongString
from tpy.messages import DataType

TINY = ArraySizes(piece=40, look=4, string=8, array=3, space=2)
"""Everything is long."""


def flat(value: object) -> list[Any]:
    return [scalar for element in value for scalar in flat(element)] if isinstance(value, list) else [value]


def resolved(value: object) -> object:
    """With lists flat, and long arrays and strings as lists and strings."""
    if isinstance(value, LongArray):
        return [scalar for piece in value.pieces() for scalar in flat(piece.parse())]
    if isinstance(value, LongString):
        return value.decode()
    if isinstance(value, list):
        if any(isinstance(scalar, dict) for scalar in flat(value)):
            return [resolved(element) for element in value]
        return [resolved(scalar) for scalar in flat(value)]
    if isinstance(value, dict):
        return {key: resolved(member) for key, member in value.items()}
    return value


SCALARS = st.one_of(st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False), st.booleans(), st.none())
TEXTS = st.text(alphabet='ab"\\,[]{}: \n\u00e9\u20ac\U0001f600', max_size=40)
ARRAYS = st.recursive(st.lists(st.one_of(SCALARS, TEXTS), max_size=12), lambda inner: st.lists(inner, max_size=4), max_leaves=12)
DOCUMENTS = st.recursive(
    st.one_of(SCALARS, TEXTS, ARRAYS),
    lambda inner: st.one_of(
        st.dictionaries(st.text(alphabet="ab", max_size=3), inner, max_size=4),
        st.lists(st.dictionaries(st.text(alphabet="ab", max_size=3), inner, max_size=2), max_size=3),
    ),
    max_leaves=12,
)


class TestTinyPieces:
    """A short run of what the fuzz target of pieces tries for as long as it is given."""

    @settings(max_examples=200)
    @given(document=DOCUMENTS, indent=st.sampled_from([None, 0, 2 * TINY.piece]), escaped=st.booleans())
    def test_pieces_are_the_whole(self, document: object, *, indent: int | None, escaped: bool) -> None:
        """The widest indentation is white space of more than a piece between any two tokens."""
        text = json.dumps(document, ensure_ascii=escaped, indent=indent, separators=(",   ", ":   ")).encode()
        assert resolved(load_in_pieces(text, TINY)) == resolved(parse_json(text))

    @settings(max_examples=100)
    @given(document=ARRAYS, seed=st.integers(0, 2**32), inside=st.booleans())
    def test_what_is_broken_is_refused(self, document: object, seed: int, *, inside: bool) -> None:
        """One byte more, less or other, anywhere: refused when the whole is, and the same when it is not."""
        text = bytearray(json.dumps({"data": document} if inside else document).encode())
        chance = random.Random(seed)
        at = chance.randrange(len(text))
        text[at : at + chance.randrange(2)] = chance.choice(
            [b"", b",", b"[", b"]", b'"', b"\\", b"1", b" ", b"-", b"\x00", b"\xff"]
        )
        broken = bytes(text)
        try:
            expected = resolved(parse_json(broken))
        except InvalidArgument:
            with pytest.raises(InvalidArgument):
                resolved(load_in_pieces(broken, TINY))
            return
        assert resolved(load_in_pieces(broken, TINY)) == expected

    @pytest.mark.parametrize(
        "text", ["[1,2,3,4,5,6,7,[ ,8]]", "[[1,2,3,4,5,6],7,]", "[1,2,3,4,5,6,7,,8,9]", "[[[1,2,3,4,5]],[6,7,8]],9", '["abc"]1]']
    )
    def test_cuts_hide_no_mistake(self, text: str) -> None:
        with pytest.raises(InvalidArgument, match="failed to parse the request JSON buffer"):
            resolved(load_in_pieces(text.encode(), TINY))

    def test_what_a_later_member_hides_is_refused(self) -> None:
        with pytest.raises(InvalidArgument, match="failed to parse the request JSON buffer"):
            load_in_pieces(b'{"a":[1,2,3,4,5,6,7,,8,9],"a":1}', TINY)
        with pytest.raises(InvalidArgument, match="failed to parse the request JSON buffer"):
            load_in_pieces(b'{"a":"aaaaaaaaaaaaaaaaa\\x","a":1}', TINY)
        assert load_in_pieces(b'{"a":[1,2,3,4,5,6,7,8,9],"a":1}', TINY) == {"a": 1}

    def test_offsets_are_those_of_the_document(self) -> None:
        text = b'{"data":[1,2,3,4,5,6,7,8,9],"more":"aaaaaaaaaaaaaaaaaaaaaaaaaa","x":?}'
        with pytest.raises(InvalidArgument, match=f"at {text.index(b'?')}$"):
            load_in_pieces(text, TINY)

    def test_nobody_can_name_what_was_cut_out(self) -> None:
        document = load_in_pieces(b'["0","1","00000000000000000000000000000000",{"a":[1,2,3,4,5,6,7,8]}]', TINY)
        assert resolved(document) == ["0", "1", "0" * 32, {"a": [1, 2, 3, 4, 5, 6, 7, 8]}]


@pytest.mark.parametrize("datatype", [DataType.FP32, DataType.FP64, DataType.INT64])
@pytest.mark.parametrize("rows", [1, 7, 1000])
def test_large_tensors(datatype: DataType, rows: int) -> None:
    values = (np.random.default_rng(1).random((rows, 200_000 // rows)) * 1000).astype(datatype.numpy)
    text = orjson.dumps({"data": values}, option=orjson.OPT_SERIALIZE_NUMPY)
    document = load_in_pieces(text)
    assert isinstance(document, dict)
    assert isinstance(document["data"], LongArray)
    assert np.array_equal(read_json_data(document["data"], datatype, values.size, tensor="x"), values.reshape(-1))


def test_large_strings_in_tensors() -> None:
    values = ["a" * 300_000, "\u20ac" * 100_000, '"\\' * 100_000, "", "\U0001f600" * 50_000, "x"]
    for text in (json.dumps({"data": values}), json.dumps({"data": [values]}, ensure_ascii=False)):
        document = load_in_pieces(text.encode())
        assert isinstance(document, dict)
        found = read_json_data(document["data"], DataType.BYTES, len(values), tensor="x")
        assert [element.decode() for element in found.tolist()] == values


@pytest.mark.parametrize(
    "where",
    ['%s{"inputs":[]}', '{"inputs":[]%s}', '{"inputs":%s[]}', '{"inputs":[%s{"name":"a  b"}]}', '{"inputs":[{}%s]}', "{%s?}"],
)
def test_white_space_is_no_part_of_the_bound(where: str) -> None:
    text = where % (" \t\r\n" * limits.JSON_OUTLINE_BYTES_MAX)
    if "?" in text:
        with pytest.raises(InvalidArgument, match=f"at {text.index('?')}$"):
            load_in_pieces(text.encode())
    else:
        assert load_in_pieces(text.encode()) == json.loads(where % "")


@pytest.mark.parametrize(
    "where",
    [
        "%s[1,2]",
        "[%s1,2]",
        "[1%s,2]",
        "[1,%s2]",
        "[1,2%s]",
        "[1,2]%s",
        "[%s]",
        "[%s[%s1%s]%s,%s[%s2%s]%s]",
        '["a"%s,%s"b"%s]',
        '["%s"%%s,"b"%%s]' % ("a" * 200_000),
        '[%%s["%s"%%s],["b"]%%s]' % ("a" * 200_000),
        '[1,%s{"a":[1%s,2%s]}%s,3]',
        '{"a":1%s,%s"b"%s:%s[1%s]%s}',
    ],
)
def test_white_space_anywhere_is_skipped(where: str) -> None:
    """Longer than a piece, after and before each token."""
    count = where.count("%s")
    text = where % ((" \t\r\n" * (SIZES.piece // 2),) * count)
    assert resolved(load_in_pieces(text.encode())) == resolved(json.loads(where % (("",) * count)))


@pytest.mark.parametrize("where", ["[1%s2,3]", '["a"%s"b"]', '["%s"%%s"b"]' % ("a" * 200_000), "[1%s", "[1,%s]", "[[1]%s2]"])
def test_white_space_hides_no_mistake(where: str) -> None:
    text = where % (" " * 2 * SIZES.piece)
    with pytest.raises(InvalidArgument, match="failed to parse the request JSON buffer"):
        resolved(load_in_pieces(text.encode()))


@pytest.mark.parametrize("element", [b"1", b'"a"', b"[1]"])
def test_white_space_takes_no_memory(element: bytes) -> None:
    """Of 32 MiB, the pieces keep the elements."""
    text = b"[" + b",".join([element + b" " * (2 * SIZES.piece)] * 128) + b"]"
    tracemalloc.start()
    try:
        document = load_in_pieces(text)
        assert isinstance(document, LongArray)
        assert sum(len(flat(piece.parse())) for piece in document.pieces()) == 128
        assert tracemalloc.get_traced_memory()[1] < len(text) // 16
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("unit", [b"{},", b"[],{},", b'{"a":1},', b'[{"a":[]}],'])
def test_what_is_neither_array_nor_string_is_bounded(unit: bytes) -> None:
    text = b'{"inputs":[' + unit * (2 * limits.JSON_OUTLINE_BYTES_MAX // len(unit)) + b"1]}"
    with pytest.raises(InvalidArgument, match="bytes besides its arrays of numbers or strings"):
        load_in_pieces(text)


@pytest.mark.parametrize(
    "text", [b"[" * 2_000_000, b"[[]," * 500_000, b'["' * 500_000, b"[" + b"1" * 2_000_000, b'"' + b"a" * 2_000_000]
)
def test_what_never_ends_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArgument):
        load_in_pieces(text)
