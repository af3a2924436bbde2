"""The requests about shared memory with clients, in the order in which they are sent, over HTTP (`shared_memory_grpc_cases` has
those over gRPC).

They are made for a `Segments`: what they name in /dev/shm is new each time.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from .cases import Case

_FOLDER = Path("/dev/shm")
PAGE = os.sysconf("SC_PAGE_SIZE")
MODELS = ("addsub", "ident", "nobatch", "text", "types")
"""Of the repository of `tests.conformance.repository`."""

FLOATS = np.arange(4, dtype=np.float32).tobytes()
OTHERS = np.arange(4, 8, dtype=np.float32).tobytes()
INTS = np.arange(8, dtype=np.int32).tobytes()
WORDS = b"".join(len(word).to_bytes(4, "little") + word for word in (b"ab", b"", b"c\xff"))
OUTPUT_BYTES = 64

RESERVED = "triton_python_backend_shm_region_"
_UINT64_MAX = 2**64 - 1
INT64_MAX = 2**63 - 1


class Segments:
    """Segments of shared memory that a client made. `prefix` is how their keys begin."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def key(self, name: str) -> str:
        """The key of a segment."""
        return f"/{self.prefix}{name}"

    def create(self) -> None:
        """Make all of them."""
        (_FOLDER / RESERVED).write_bytes(bytes(8))
        self._path("in").write_bytes(FLOATS + OTHERS + INTS)
        self._path("spare").write_bytes(bytes(64))
        self._path("words").write_bytes(WORDS + b"\7\0\0\0x" + bytes(64))
        self._path("pages").write_bytes(bytes(PAGE) + FLOATS + bytes(PAGE - len(FLOATS)))
        self._path("flags").write_bytes(b"\0\7")
        self.clear()

    def clear(self) -> None:
        """Make the output's segment zeros."""
        self._path("out").write_bytes(bytes(OUTPUT_BYTES))

    def output(self) -> bytes:
        """The bytes of the output's segment."""
        return self._path("out").read_bytes()

    def remove(self) -> None:
        """Remove all of them."""
        for path in _FOLDER.glob(f"{self.prefix}*"):
            path.unlink()
        (_FOLDER / RESERVED).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return _FOLDER / f"{self.prefix}{name}"


@contextmanager
def segments() -> Iterator[Segments]:
    """Segments for the length of the block, of this process alone."""
    made = Segments(f"tpy_conformance_{os.getpid()}_")
    made.create()
    try:
        yield made
    finally:
        made.remove()


# HTTP


def http_cases(made: Segments) -> list[Case]:
    """All requests over HTTP."""
    return [*_http_registrations(made), *_http_infers(), *_http_ends()]


def _register(name: str, region: str, body: object, kind: str = "system") -> Case:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Case(name=f"register {name}", path=f"/v2/{kind}sharedmemory/region/{region}/register", body=raw)


def _get(name: str, path: str) -> Case:
    return Case(name=name, method="GET", path=path)


def _http_registrations(made: Segments) -> Iterator[Case]:
    key = made.key
    yield _get("status before", "/v2/systemsharedmemory/status")
    yield _get("cuda status before", "/v2/cudasharedmemory/status")
    yield _get("status of unknown", "/v2/systemsharedmemory/region/nosuch/status")
    yield _get("cuda status of unknown", "/v2/cudasharedmemory/region/nosuch/status")
    yield Case(name="unregister unknown", path="/v2/systemsharedmemory/region/nosuch/unregister")
    yield Case(name="unregister nothing", path="/v2/systemsharedmemory/unregister")
    yield _register("in", "in", {"key": key("in"), "byte_size": 64})
    yield _register("out", "out", {"key": key("out"), "offset": 0, "byte_size": OUTPUT_BYTES})
    yield _register("words", "words", {"key": key("words"), "byte_size": len(WORDS) + 5})
    yield _register("flags", "flags", {"key": key("flags"), "byte_size": 2})
    yield _register("the second page", "page", {"key": key("pages"), "offset": PAGE, "byte_size": PAGE})
    yield _register("a name again", "in", {"key": key("out"), "byte_size": 8})
    yield _register("a name again, with a key that is not there", "in", {"key": key("nosuch"), "byte_size": 8})
    yield _register("a key again", "again", {"key": key("in"), "byte_size": 8})
    yield _register("a key again, without its slash", "small", {"key": key("in").removeprefix("/"), "byte_size": 8})
    yield _register("a key with slashes in front", "slashes", {"key": "//" + key("in"), "byte_size": 8})
    bad: tuple[tuple[str, object], ...] = (
        ("no body", b""),
        ("no JSON", b"{"),
        ("a list", []),
        ("no key", {"byte_size": 8}),
        ("no size", {"key": key("spare")}),
        ("a number as key", {"key": 7, "byte_size": 8}),
        ("null as key", {"key": None, "byte_size": 8}),
        ("a string as size", {"key": key("spare"), "byte_size": "8"}),
        ("a fraction as size", {"key": key("spare"), "byte_size": 8.5}),
        ("a negative size", {"key": key("spare"), "byte_size": -8}),
        ("no bytes", {"key": key("spare"), "byte_size": 0}),
        ("a negative offset", {"key": key("spare"), "offset": -8, "byte_size": 8}),
        ("a string as offset", {"key": key("spare"), "offset": "0", "byte_size": 8}),
        ("null as offset", {"key": key("spare"), "offset": None, "byte_size": 8}),
        ("an offset within a page", {"key": key("spare"), "offset": 8, "byte_size": 8}),
        ("too many bytes", {"key": key("spare"), "byte_size": 65}),
        ("an offset behind the end", {"key": key("spare"), "offset": PAGE, "byte_size": 8}),
        ("the largest size", {"key": key("spare"), "byte_size": _UINT64_MAX}),
        ("an offset that overflows", {"key": key("spare"), "offset": _UINT64_MAX, "byte_size": 8}),
        ("offset and size that overflow to nothing", {"key": key("spare"), "offset": 2**63, "byte_size": 2**63}),
        ("a size of 65 bits", {"key": key("spare"), "byte_size": 2**64}),
        ("an unknown key", {"key": key("nosuch"), "byte_size": 8}),
        ("an empty key", {"key": "", "byte_size": 8}),
        ("a slash as key", {"key": "/", "byte_size": 8}),
        ("a folder as key", {"key": "/.", "byte_size": 8}),
        ("the folder above as key", {"key": "..", "byte_size": 8}),
        ("a path as key", {"key": "/../shm" + key("spare"), "byte_size": 8}),
        ("a path within as key", {"key": "/x/y", "byte_size": 8}),
        ("a path outside as key", {"key": "/../../etc/passwd", "byte_size": 8}),
        ("a key with NUL", {"key": key("spare") + "\0x", "byte_size": 8}),
        ("a long key", {"key": "/" + "k" * 254, "byte_size": 8}),
        ("a very long key", {"key": "/" + "k" * 5000, "byte_size": 8}),
        ("a key of the server's own behind slashes", {"key": "///" + RESERVED + "0", "byte_size": 8}),
    )
    for name, body in bad:
        yield _register(name, "nul" if "NUL" in name else "bad", body)
    yield _register("a key of the server's own", "own", {"key": RESERVED, "byte_size": 8})
    yield _register("an encoded name", "a%20b%C3%BC", {"key": key("spare"), "byte_size": 8})
    yield _get("status of an encoded name", "/v2/systemsharedmemory/region/a%20b%C3%BC/status")
    yield Case(name="register without a name", path="/v2/systemsharedmemory/register", body=b"{}")
    yield _get("register by GET", "/v2/systemsharedmemory/region/in/register")
    yield Case(name="status by POST", path="/v2/systemsharedmemory/status")
    yield _get("unregister by GET", "/v2/systemsharedmemory/region/in/unregister")
    yield _get("status of one", "/v2/systemsharedmemory/region/page/status")
    yield _get("status of all", "/v2/systemsharedmemory/status")
    yield from _http_cuda()


def _http_cuda() -> Iterator[Case]:
    handle = {"b64": base64.b64encode(bytes(64)).decode()}
    yield _get("cuda status of a system region", "/v2/cudasharedmemory/region/in/status")
    bodies: tuple[tuple[str, object], ...] = (
        ("no body", b""),
        ("a handle", {"raw_handle": handle, "device_id": 0, "byte_size": 8}),
        ("no handle", {"device_id": 0, "byte_size": 8}),
        ("a handle that is no object", {"raw_handle": "x", "device_id": 0, "byte_size": 8}),
        ("a short handle", {"raw_handle": {"b64": "AAAA"}, "device_id": 0, "byte_size": 8}),
        ("a handle that is not base64", {"raw_handle": {"b64": "*"}, "device_id": 0, "byte_size": 8}),
        ("no device", {"raw_handle": handle, "byte_size": 8}),
        ("no size", {"raw_handle": handle, "device_id": 0}),
        ("device 99", {"raw_handle": handle, "device_id": 99, "byte_size": 8}),
    )
    for name, body in bodies:
        yield _register(f"cuda, {name}", "gpu", body, "cuda")
    yield _get("cuda status after", "/v2/cudasharedmemory/status")
    yield Case(name="unregister cuda, unknown", path="/v2/cudasharedmemory/region/nosuch/unregister")
    yield Case(name="unregister cuda, of a system region", path="/v2/cudasharedmemory/region/in/unregister")
    yield Case(name="unregister cuda, all", path="/v2/cudasharedmemory/unregister")
    yield _get("status after cuda calls", "/v2/systemsharedmemory/region/in/status")


def region(name: object, size: object = None, offset: object = None) -> dict[str, Any]:
    parameters = {"shared_memory_region": name, "shared_memory_byte_size": size, "shared_memory_offset": offset}
    return {key: value for key, value in parameters.items() if value is not None}


def _in(parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": parameters, **more}


def _out(parameters: dict[str, Any], name: str = "OUTPUT0") -> dict[str, Any]:
    return {"name": name, "parameters": parameters}


_DATA = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "data": [9, 8, 7, 6]}
_IN = _in(region("in", 16))
_OUT = _out(region("out", 16))


def _infer(name: str, model: str, inputs: object, outputs: object = None, **members: object) -> Case:
    document = {"inputs": inputs, **({} if outputs is None else {"outputs": outputs}), **members}
    return Case(name=f"infer {name}", path=f"/v2/models/{model}/infer", body=json.dumps(document).encode())


def _http_infers() -> Iterator[Case]:
    yield _infer("in and out", "ident", [_IN], [_OUT])
    yield _infer("in and out, with an id", "ident", [_IN], [_OUT], id="seven")
    yield _infer("out alone", "ident", [_DATA], [_OUT])
    yield _infer("in alone", "ident", [_IN])
    yield _infer("in alone, binary out", "ident", [_IN], [_out({"binary_data": True})])
    yield _infer("binary for all", "ident", [_IN], [_OUT], parameters={"binary_data_output": True})
    yield _infer("binary switched off", "ident", [_IN], [_out({**region("out", 16), "binary_data": False})])
    yield _infer("at an offset", "ident", [_in(region("in", 16, 16))], [_out(region("out", 16, 48))])
    yield _infer("of the second page", "ident", [_in(region("page", 16))], [_OUT])
    yield _infer("into what is larger", "ident", [_IN], [_out(region("out", 64))])
    yield _infer("into what is smaller", "ident", [_IN], [_out(region("out", 15))])
    yield _infer("into no bytes", "ident", [_IN], [_out(region("out"))])
    yield _infer("into no bytes, explicitly", "ident", [_IN], [_out(region("out", 0))])
    empty = {"name": "INPUT0", "datatype": "FP32", "shape": [1, 0], "data": []}
    yield _infer("an empty output", "ident", [empty], [_out(region("out", 0))])
    yield _infer("an empty input", "ident", [_in(region("in", 0), shape=[1, 0])])
    yield _infer("within one region", "ident", [_in(region("out", 16))], [_out(region("out", 16, 8))])
    yield from _http_infers_refused()
    yield from _http_infers_of_types()


def _http_infers_refused() -> Iterator[Case]:
    inputs: tuple[tuple[str, dict[str, Any]], ...] = (
        ("unknown", _in(region("nosuch", 16))),
        ("unknown, of no size", _in(region("nosuch"))),
        ("that is no name", _in(region(7, 16))),
        ("without a name", _in(region("", 16))),
        ("of no size", _in(region("in"))),
        ("too short", _in(region("in", 12))),
        ("too long", _in(region("in", 20))),
        ("of a string as size", _in(region("in", "16"))),
        ("of a negative size", _in(region("in", -16))),
        ("of a string as offset", _in(region("in", 16, "0"))),
        ("of a negative offset", _in(region("in", 16, -4))),
        ("of an offset at the end", _in(region("in", 16, 64))),
        ("of an offset behind the end", _in(region("in", 16, 4096))),
        ("that goes beyond the end", _in(region("in", 16, 56))),
        ("of offset and size that overflow", _in(region("in", _UINT64_MAX - 7, 16))),
        ("of the largest size", _in(region("in", _UINT64_MAX))),
        ("of the largest offset", _in(region("in", 16, _UINT64_MAX))),
        ("and data", _in(region("in", 16), data=[1, 2, 3, 4])),
        ("and a blob", _in({**region("in", 16), "binary_data_size": 16})),
        ("and data and a blob", _in({**region("in", 16), "binary_data_size": 16}, data=[1, 2, 3, 4])),
        ("of an unknown datatype", _in(region("in", 16), datatype="FP99")),
        ("of another shape", _in(region("in", 16), shape=[1, 8])),
    )
    for name, tensor in inputs:
        yield _infer(f"input {name}", "ident", [tensor])
    yield _infer("size and offset without a region", "ident", [{**_DATA, "parameters": {"shared_memory_byte_size": "x"}}])
    outputs: tuple[tuple[str, dict[str, Any]], ...] = (
        ("unknown", _out(region("nosuch", 16))),
        ("that is no name", _out(region(7, 16))),
        ("beyond the end", _out(region("out", 16, 56))),
        ("of an offset at the end", _out(region("out", 16, 64))),
        ("of a string as size", _out(region("out", "16"))),
        ("with classes", _out({**region("out", 16), "classification": 1})),
        ("in binary", _out({**region("out", 16), "binary_data": True})),
        ("in no boolean", _out({**region("out", 16), "binary_data": 1})),
        ("that the model does not have", _out(region("out", 16), "NOSUCH")),
    )
    for name, output in outputs:
        yield _infer(f"output {name}", "ident", [_IN], [output])
    yield _infer("output size without a region", "ident", [_IN], [_out({"shared_memory_byte_size": "x"})])
    yield _infer("output twice", "ident", [_IN], [_OUT, _OUT])
    blob = json.dumps({"inputs": [_IN]}).encode()
    yield Case(
        name="infer with a blob that nobody claims",
        path="/v2/models/ident/infer",
        body=blob + FLOATS,
        headers={"Inference-Header-Content-Length": str(len(blob))},
    )


def _http_infers_of_types() -> Iterator[Case]:
    def words(size: int, count: int = 3, offset: int | None = None) -> dict[str, Any]:
        return {"name": "INPUT0", "datatype": "BYTES", "shape": [count], "parameters": region("words", size, offset)}

    yield _infer("words", "text", [words(len(WORDS))], [_out(region("out", 64))])
    yield _infer("words, JSON out", "text", [words(6, 1)])
    yield _infer("words that do not fit", "text", [words(len(WORDS))], [_out(region("out", len(WORDS) - 1))])
    yield _infer("words with more behind them", "text", [words(len(WORDS) + 1)])
    yield _infer("too few words", "text", [words(len(WORDS), 4)])
    yield _infer("too many words", "text", [words(len(WORDS), 2)])
    yield _infer("a word that goes on behind the size", "text", [words(9, 1, len(WORDS) - 4)])
    both = [
        {"name": name, "datatype": "INT32", "shape": [1, 4], "parameters": region("in", 16, at)}
        for name, at in (("INPUT0", 32), ("INPUT1", 48))
    ]
    apart = [_out(region("out", 16, at), name) for name, at in (("OUTPUT0", 0), ("OUTPUT1", 16))]
    yield _infer("two inputs, two outputs", "addsub", both, apart)
    yield _infer("one output of two", "addsub", both, apart[1:])
    yield _infer("one output in a region, one not", "addsub", both, [apart[0], {"name": "OUTPUT1"}])
    yield _infer("one output in a region, one too small", "addsub", both, [apart[0], _out(region("out", 8, 16), "OUTPUT1")])
    flags = {"name": "INPUT_BOOL", "datatype": "BOOL", "shape": [2], "parameters": region("flags", 2)}
    yield _infer("flags", "types", [flags], [_out(region("out", 2), "OUTPUT_BOOL")])


def _http_ends() -> Iterator[Case]:
    yield Case(name="unregister one", path="/v2/systemsharedmemory/region/small/unregister")
    yield Case(name="unregister it again", path="/v2/systemsharedmemory/region/small/unregister")
    yield _infer("input of a region that is gone", "ident", [_in(region("small", 8))])
    yield Case(name="unregister all", path="/v2/systemsharedmemory/unregister")
    yield _get("status at the end", "/v2/systemsharedmemory/status")


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a request, and what was in the output's segment then, in base64 and without the zeros at its end."""

    answer: Any
    output: str
