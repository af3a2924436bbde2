"""Headers of GGUF files, and the chat templates in them: read, or refused, whatever the file is."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpy import limits
from tpy.errors import Unsupported
from tpy.gguf import TEMPLATE as KEY
from tpy.gguf import GgufError, GgufHeader, read_header, special_tokens
from tpy_platforms.openai.templates import template_of

TEMPLATE = "{{ bos_token }}{{ messages[0].content }}"
STRING, ARRAY, UINT32, FLOAT64 = 8, 9, 4, 12


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def array(kind: int, *elements: bytes) -> bytes:
    return struct.pack("<IQ", kind, len(elements)) + b"".join(elements)


VALUES = (
    ("general.architecture", STRING, text("llama")),
    ("a.number", FLOAT64, struct.pack("<d", 1.5)),
    ("tokenizer.ggml.bos_token_id", UINT32, struct.pack("<I", 1)),
    ("tokenizer.ggml.eos_token_id", UINT32, struct.pack("<I", 9)),
    ("tokenizer.ggml.scores", ARRAY, array(FLOAT64, struct.pack("<d", 1), struct.pack("<d", 2))),
    ("tokenizer.ggml.merges", ARRAY, array(STRING, text("a b"), text("é"))),
    ("tokenizer.ggml.tokens", ARRAY, array(STRING, text("a"), text("<s>"))),
    ("tokenizer.chat_template", STRING, text(TEMPLATE)),
)


def gguf(*values: tuple[str, int, bytes], version: int = 3, count: int | None = None) -> bytes:
    pairs = b"".join(text(key) + struct.pack("<I", kind) + value for key, kind, value in values)
    return b"GGUF" + struct.pack("<IQQ", version, 0, len(values) if count is None else count) + pairs


WHOLE = gguf(*VALUES)


def written(folder: Path, content: bytes) -> Path:
    file = folder / "model.gguf"
    file.write_bytes(content)
    return file


def test_the_template_of_a_model(tmp_path: Path) -> None:
    file = written(tmp_path, WHOLE + b"weights")
    entries = read_header(file).entries
    assert (entries[KEY], special_tokens(entries)) == (TEMPLATE, {"bos_token": "<s>"})
    for place in (file, tmp_path):
        assert template_of("m", {"tokenizer": str(place)}, None).render([{"content": "hi"}], None) == "<s>hi"
    written(tmp_path, gguf(VALUES[0]))
    with pytest.raises(Unsupported, match=r"model 'm': the model .*model.gguf has no tokenizer.chat_template"):
        template_of("m", {"tokenizer": str(tmp_path)}, None)
    (tmp_path / "second.gguf").write_bytes(WHOLE)
    with pytest.raises(Unsupported, match=r"cannot read the tokenizer .*tokenizer_config.json"):
        template_of("m", {"tokenizer": str(tmp_path)}, None)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it ends within its header"),
        (b"GGML", "does not begin as GGUF does"),
        (gguf(version=1), "its version is 1, expected 2 or 3"),
        (gguf(version=0x03000000), "its version is 50331648"),
        (gguf(*VALUES, count=9), "it ends within its header"),
        (gguf(count=2**63), "more than 2000000 items"),
        (gguf(("a", 77, b"")), "a value of an unknown type, 77"),
        (gguf(("a", ARRAY, array(ARRAY, array(STRING)))), "a value of an unknown type, 9"),
        (gguf(("a", ARRAY, struct.pack("<IQ", UINT32, 2**63))), "more than 67108864 bytes"),
        (gguf(("a", ARRAY, struct.pack("<IQ", STRING, 2**63))), "more than 2000000 items"),
        (gguf(("a", STRING, struct.pack("<Q", 2**64 - 1))), "more than 67108864 bytes"),
        (gguf(("tokenizer.ggml.tokens", ARRAY, array(UINT32, struct.pack("<I", 7)))), "tokenizer.ggml.tokens has no texts"),
    ],
)
def test_files_that_are_something_else(tmp_path: Path, content: bytes, problem: str) -> None:
    with pytest.raises(GgufError, match=problem):
        special_tokens(read_header(written(tmp_path, content)).entries)


def test_many_small_texts_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GGUF_ITEMS_MAX", 10)
    with pytest.raises(GgufError, match="more than 10 items"):
        read_header(written(tmp_path, WHOLE))


@settings(max_examples=300)
@given(st.integers(0, len(WHOLE) - 1), st.binary(min_size=1, max_size=9), st.integers(0, len(WHOLE)))
def test_a_spoiled_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, at: int, spoiled: bytes, end: int) -> None:
    content = WHOLE[:at] + spoiled + WHOLE[at + len(spoiled) :]
    try:
        found = read_header(written(tmp_path_factory.getbasetemp(), content[: max(end, at)]))
    except GgufError:
        return
    assert isinstance(found, GgufHeader)
