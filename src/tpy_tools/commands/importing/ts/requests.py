"""Makes inputs of handlers of a request over HTTP, and answers of what they return."""

from __future__ import annotations

import io
import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl

logger = logging.getLogger(__name__)

_MULTIPART = "multipart/form-data"
_FORM = "application/x-www-form-urlencoded"
_BOUNDARY = re.compile(r'boundary=(?:"([^"]+)"|([^;\s]+))', re.IGNORECASE)
_NAME = re.compile(r'[;\s]name="((?:[^"\\]|\\.)*)"|[;\s]name=([^;\s"]+)', re.IGNORECASE)
_PARTS_MAX = 1000


class UnusableBodyError(ValueError):
    """A body that is not what its content type says. `str()` says why."""


def inputs_of(body: bytes, headers: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The inputs of a request by name, and its headers, with the content type of each input under its name. Raises
    UnusableBodyError."""
    content_type = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    kind = _kind(content_type)
    if kind == _MULTIPART:
        parts = list(_parts(body, content_type))
    elif kind == _FORM:
        pairs = parse_qsl(body.decode("latin-1"), keep_blank_values=True, encoding="utf-8", max_num_fields=_PARTS_MAX)
        parts = [(name, "", value.encode()) for name, value in pairs]
    else:
        parts = [("body", kind, body)]
    types = {name: {"content-type": part_kind} for name, part_kind, _ in parts}
    return {name: _value(part_kind, content) for name, part_kind, content in parts}, {**types, **headers}


def _kind(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _value(kind: str, content: bytes) -> Any:
    """JSON as what it stands for, text as text, all else, and what is neither, as it was sent."""
    try:
        if kind == "application/json":
            return json.loads(content.decode())
        if kind.startswith("text"):
            return content.decode()
    except ValueError:
        logger.warning("a body is not the %s that it is said to be", kind)
    return bytearray(content)


def _parts(body: bytes, content_type: str) -> Iterator[tuple[str, str, bytes]]:
    """Name, content type and content of each part of a form."""
    found = _BOUNDARY.search(content_type)
    if found is None:
        raise UnusableBodyError("a form without a boundary in its content type")
    boundary = re.escape((found[1] or found[2]).encode())
    pieces = re.split(rb"\r\n--" + boundary + rb"(?=--|[ \t]*\r\n)", b"\r\n" + body, maxsplit=_PARTS_MAX + 1)
    if len(pieces) < 3 or not pieces[-1].startswith(b"--"):
        raise UnusableBodyError(
            f"a form with more than {_PARTS_MAX} parts" if len(pieces) > _PARTS_MAX else "a form without an end"
        )
    for piece in pieces[1:-1]:
        head, separator, content = piece.partition(b"\r\n\r\n")
        fields = {}
        for line in head.decode("utf-8", "replace").split("\r\n"):
            name, _, value = line.partition(":")
            fields[name.strip().lower()] = value.strip()
        disposition = fields.get("content-disposition", "")
        named = _NAME.search(disposition)
        if not separator or named is None:
            raise UnusableBodyError("a form with a part without a name")
        is_file = "filename" in disposition.lower()
        kind = _kind(fields.get("content-type", "application/octet-stream")) if is_file else ""
        yield named[1] or named[2] or "", kind, content


class UnsupportedOutputError(TypeError):
    """An output that no answer can carry."""


def content_of(output: Any) -> tuple[bytes, str]:
    """The body of the answer with this output, and its content type, "" for any. Raises UnsupportedOutputError."""
    if isinstance(output, (bytes, bytearray)):
        return bytes(output), ""
    if isinstance(output, str):
        return output.encode(), ""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(output, torch.Tensor):
        buffer = io.BytesIO()
        torch.save(output, buffer)
        return buffer.getvalue(), ""
    try:
        return json.dumps(output, indent=2).encode(), "application/json"
    except (TypeError, ValueError) as error:
        raise UnsupportedOutputError(str(error)) from error
