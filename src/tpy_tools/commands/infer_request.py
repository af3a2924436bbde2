"""`tpy infer MODEL VALUES...`: one request to a running server, made of what is written on the command line.

The model's metadata say which inputs there are, of which type and shape; values are fitted to them:

    name=value      an input of that name, else a parameter; the value is JSON ([1, 2.5], 3, "text"), else text
    name=@file      the file is the input
    file.json       a whole request, as for the HTTP API, or an object of names and values
    file            for the only input that is left: .npy as an array, a picture for an input of numbers, else its bytes
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import orjson

from tpy.cli.parsing import UsageError
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import BY_WORD
from tpy_tools.commands.client import Client, ClientError, Parameter, model_path

_DECOUPLED = "decoupled transaction policy"
"""In the server's answer to a request that has to be a stream."""
_NOT_YET = ("it is loading", "the server is starting")
"""In the server's answers that a client may wait after."""
_LOADING_S_MAX = 60.0
_LOOKS_S = 0.2
_PIECE_BY_PIECE = ("stream", "exclude_input_in_output")
_TEXT = "text_output"
_ABOUT = frozenset({"model_name", "model_version", "id"})
_PICTURES = frozenset({".png", ".jpg", ".jpeg", ".gif", ".bmp", ".webp"})
_COLOURS = 3


class _Described(msgspec.Struct, frozen=True):
    """A tensor of the metadata."""

    name: str
    datatype: str
    shape: tuple[int, ...]

    @property
    def kind(self) -> DataType:
        return BY_WORD[self.datatype]

    def __str__(self) -> str:
        return f"{self.name} {self.datatype}[{','.join('?' if size < 0 else str(size) for size in self.shape)}]"


class _Metadata(msgspec.Struct, frozen=True):
    """The inputs and outputs of a model."""

    inputs: tuple[_Described, ...]
    outputs: tuple[_Described, ...]


class InferAnswer(NamedTuple):
    """The outputs, or the document that answers a whole request, or the `responses` of a decoupled model, which come one after
    another; `notes` say what was made of files."""

    outputs: Sequence[Tensor]
    document: object = None
    notes: Sequence[str] = ()
    responses: Iterator[Mapping[str, object]] | None = None


def infer(
    client: Client,
    model: str,
    values: Sequence[str],
    *,
    outputs: Sequence[str] = (),
    say: Callable[[str], object] = lambda text: None,
) -> InferAnswer:
    """Ask `model` once; wait for one that is loading, up to a minute, and `say` so. Raises ClientError, and UsageError for values
    that do not fit."""
    metadata = _metadata_when_loaded(client, model, say)
    request = _Request(model, metadata)
    for value in values:
        document = request.add(value)
        if document is not None:
            return InferAnswer([], client.post(f"{model_path(model)}/infer", document))
    request.require_complete()
    wanted: dict[str, Mapping[str, Parameter]] = {name: {} for name in outputs}
    try:
        found = client.infer(model, list(request.tensors.values()), outputs=wanted, parameters=request.parameters)
    except ClientError as error:
        if _DECOUPLED not in str(error):
            raise
        return InferAnswer([], notes=request.notes, responses=_streamed(client, model, metadata, request, outputs))
    return InferAnswer(found, notes=request.notes)


def _streamed(
    client: Client, model: str, metadata: _Metadata, request: _Request, outputs: Sequence[str]
) -> Iterator[Mapping[str, object]]:
    """The responses of a decoupled model: names and values. A language model is asked for its text piece by piece, without the
    prompt, unless the request says otherwise."""
    known = {tensor.name for tensor in metadata.inputs}
    given: dict[str, object] = {name: True for name in _PIECE_BY_PIECE if name in known}
    given |= {name: _plain(tensor) for name, tensor in request.tensors.items()}
    body = orjson.dumps({**request.parameters, **given})
    for response in client.stream(f"{model_path(model)}/generate_stream", body):
        yield {name: value for name, value in response.items() if name not in _ABOUT and (not outputs or name in outputs)}


def shown_pieces(responses: Iterator[Mapping[str, object]], *, as_json: bool) -> Iterator[str]:
    """The parts of what is to be written, as they come: the text of a language model, or else a line of JSON for each
    response."""
    column = ""
    for response in responses:
        text = response.get(_TEXT)
        if as_json or not isinstance(text, str):
            yield orjson.dumps(response).decode() + "\n"
        else:
            column = text or column
            yield text
    if column and not column.endswith("\n"):
        yield "\n"


def render(answer: InferAnswer, *, as_json: bool) -> str:
    """The answer for people, or as JSON: names and values."""
    if answer.document is not None:
        return orjson.dumps(answer.document, option=orjson.OPT_INDENT_2).decode()
    if as_json:
        document = {tensor.name: _plain(tensor) for tensor in answer.outputs}
        return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()
    if not answer.outputs:
        return "(no outputs)"
    return "\n".join(f"{_title(tensor)} {_shown(tensor)}" for tensor in answer.outputs)


class _Request:
    """A request that is being put together."""

    def __init__(self, model: str, metadata: _Metadata) -> None:
        self._model = model
        self._inputs = {tensor.name: tensor for tensor in metadata.inputs}
        self.tensors: dict[str, Tensor] = {}
        self.parameters: dict[str, Parameter] = {}
        self.notes: list[str] = []

    def add(self, value: str) -> bytes | None:
        """Take one value; what it returns is a whole request. Raises UsageError."""
        name, equals, text = value.partition("=")
        if name in self._inputs and equals:
            self._set(name, text)
        elif _is_file(Path(value)):
            return self._file(Path(value))
        elif equals:
            self._parameter(name, text)
        else:
            raise UsageError(f"'{value}' is neither NAME=VALUE nor a file; {self._takes()}")
        return None

    def require_complete(self) -> None:
        """Raise UsageError when no input was given at all. Which of them are optional is for the server to say."""
        if self._inputs and not self.tensors:
            raise UsageError(f"no input was given; {self._takes()}")

    def _takes(self) -> str:
        return f"{self._model} takes {', '.join(map(str, self._inputs.values())) or 'no inputs'}"

    def _set(self, name: str, text: str) -> None:
        described = self._inputs[name]
        if text.startswith("@"):
            path = Path(text[1:])
            if not _is_file(path):
                raise UsageError(f"{name}: no such file: {path}")
            self._read(described, path)
            return
        self._put(described, text if described.kind is DataType.BYTES and not _is_json_list(text) else _json_value(text))

    def _parameter(self, name: str, text: str) -> None:
        value = _json_value(text)
        if not isinstance(value, str | int | float | bool):
            raise UsageError(f"'{name}' is neither an input nor a parameter (text, number, true or false); {self._takes()}")
        if isinstance(value, str) and not _is_unicode(value):
            raise UsageError(f"parameter '{name}' is not valid UTF-8; {self._takes()}")
        if _close_to(name, self._inputs):
            raise UsageError(f"there is no input '{name}'; {self._takes()}")
        self.parameters[name] = value

    def _file(self, path: Path) -> bytes | None:
        if path.suffix == ".json":
            content = path.read_bytes()
            try:
                document = orjson.loads(content)
            except orjson.JSONDecodeError as error:
                raise UsageError(f"{path} is not JSON: {error}") from None
            if not isinstance(document, dict):
                raise UsageError(f"{path}: expected an object: a request, or names and values")
            if "inputs" in document and "inputs" not in self._inputs:
                return content
            for name, value in document.items():
                if name not in self._inputs:
                    raise UsageError(f"{path}: there is no input '{name}'; {self._takes()}")
                self._put(self._inputs[name], value)
            return None
        left = [described for name, described in self._inputs.items() if name not in self.tensors]
        if len(left) != 1:
            raise UsageError(f"name the input: NAME=@{path}; {self._takes()}")
        self._read(left[0], path)
        return None

    def _read(self, described: _Described, path: Path) -> None:
        if path.suffix == ".npy":
            self._put(described, _saved_array(path))
        elif described.kind is DataType.BYTES:
            self._put(described, path.read_bytes())
        elif path.suffix.lower() in _PICTURES:
            array, note = picture_of(str(described), described.shape, described.kind, path)
            self.notes.append(note)
            self._put(described, array)
        else:
            self._put(described, _json_value(path.read_text(encoding="utf-8", errors="replace")))

    def _put(self, described: _Described, value: object) -> None:
        array = _array(described, value)
        self.tensors[described.name] = Tensor(described.name, described.kind, _fitted(described, array))


def _metadata_when_loaded(client: Client, model: str, say: Callable[[str], object]) -> _Metadata:
    last_s = time.monotonic() + _LOADING_S_MAX
    has_said = False
    while True:
        try:
            return _metadata(client, model)
        except ClientError as error:
            if not any(text in str(error) for text in _NOT_YET) or time.monotonic() > last_s:
                raise
        if not has_said:
            say(f"waiting for '{model}', which is loading")
            has_said = True
        time.sleep(_LOOKS_S)


def _metadata(client: Client, model: str) -> _Metadata:
    try:
        return msgspec.convert(client.get(model_path(model)), _Metadata)
    except msgspec.ValidationError as error:
        raise ClientError(f"{client.host} answers, but not like a model server: {error}") from None
    except ClientError as error:
        if not error.status:
            raise
        entries = client.post("/v2/repository/index", b"")
        names = sorted(entry["name"] for entry in entries if entry.get("state") == "READY") if isinstance(entries, list) else []
        raise ClientError(f"{error}; models that are ready: {', '.join(names) or 'none'}", error.status) from error


def _is_file(path: Path) -> bool:
    """False also for what cannot be the name of a file."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _saved_array(path: Path) -> np.ndarray[Any, Any]:
    try:
        array: np.ndarray[Any, Any] = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise UsageError(f"{path}: expected an array that numpy.save wrote, without Python objects: {error}") from None
    return array


def _json_value(text: str) -> object:
    """The value that a text is in JSON, else the text."""
    try:
        value: object = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return value


def _is_json_list(text: str) -> bool:
    return isinstance(_json_value(text), list)


def _close_to(name: str, inputs: Mapping[str, _Described]) -> bool:
    """True for a parameter whose name is that of an input but for the case: a slip."""
    return name.lower() in {known.lower() for known in inputs}


def _array(described: _Described, value: object) -> np.ndarray[Any, Any]:
    if described.kind is DataType.BYTES:
        as_list = value.tolist() if isinstance(value, np.ndarray) else value
        return _objects(as_list)
    try:
        array = np.asarray(value)
        if array.dtype.kind not in "biufV":  # a text, or rows of different lengths
            raise ValueError("no numbers")
        return array.astype(described.kind.numpy)
    except (ValueError, TypeError, OverflowError) as error:
        raise UsageError(f"{described}: the value is not an array of numbers ({error}): {str(value)[:80]}") from None


def _objects(value: object) -> np.ndarray[Any, Any]:
    """Texts and bytes as an array of `bytes`, in the shape of the nested lists."""
    shape: list[int] = []
    inner = value
    while isinstance(inner, list) and inner:
        shape.append(len(inner))
        inner = inner[0]
    flat: list[object] = []
    _flatten(value, flat.append)
    array = np.empty(len(flat), dtype=object)
    array[:] = [each if isinstance(each, bytes) else str(each).encode(errors="surrogateescape") for each in flat]
    return array.reshape(shape if math.prod(shape) == len(flat) else (-1,))


def _flatten(value: object, add: Callable[[object], None]) -> None:
    if isinstance(value, list):
        for each in value:
            _flatten(each, add)
    else:
        add(value)


def _fitted(described: _Described, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array in a shape that the input has: as it is, with dimensions of 1 in front, or the elements in order, open sizes
    but the first being 1. Raises UsageError."""
    wanted = described.shape
    shape = (1,) * (len(wanted) - array.ndim) + array.shape
    if len(shape) == len(wanted) and all(size in (-1, given) for size, given in zip(wanted, shape, strict=True)):
        return array.reshape(shape)
    fixed = math.prod(size for size in wanted if size >= 0)
    open_sizes = [at for at, size in enumerate(wanted) if size < 0]
    if open_sizes and fixed and array.size % fixed == 0:
        filled = [1 if size < 0 else size for size in wanted]
        filled[open_sizes[0]] = array.size // fixed
        return array.reshape(filled)
    if not open_sizes and array.size == fixed:
        return array.reshape(wanted)
    given = f"the shape [{','.join(map(str, array.shape))}]" if array.ndim else "one element"
    count = f"; expected {fixed} elements{' or a multiple of it' if open_sizes else ''}" if fixed else ""
    raise UsageError(f"{described}: the value has {given}{count}")


def picture_of(described: str, shape: tuple[int, ...], datatype: DataType, path: Path) -> tuple[np.ndarray[Any, Any], str]:
    """A picture as the input's numbers: its size and order of colours from the shape, 0 to 255 for integers, 0 to 1 else."""
    try:
        from PIL import Image
    except ImportError:
        raise UsageError(f"{path}: reading pictures needs Pillow: pip install pillow") from None
    sizes = shape[-3:]
    if len(sizes) != 3 or _COLOURS not in (sizes[0], sizes[2]):
        raise UsageError(f"{path}: {described} has no shape of a picture; give an array as .npy")
    first = sizes[0] == _COLOURS
    height, width = sizes[1:] if first else sizes[:2]
    try:
        with Image.open(path) as opened:
            picture = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise
        raise UsageError(f"{path}: not a picture: {error}") from None
    picture = picture.resize((width if width > 0 else picture.width, height if height > 0 else picture.height))
    array = np.asarray(picture)
    whole = datatype.numpy.kind in "iu"
    scaled = array if whole else array / np.float32(255)
    order = "colours first" if first else "colours last"
    note = f"{path}: RGB, {picture.width} x {picture.height}, {order}, {'0 to 255' if whole else '0 to 1'}"
    return (scaled.transpose(2, 0, 1) if first else scaled), f"{note}; for another preparation give an array as .npy"


def _title(tensor: Tensor) -> str:
    return f"{tensor.name} {tensor.datatype.value}[{','.join(map(str, tensor.array.shape))}]"


def _plain(tensor: Tensor) -> object:
    if tensor.datatype is DataType.BYTES:
        texts = np.array([element.decode(errors="replace") for element in tensor.array.reshape(-1)], dtype=object)
        return texts.reshape(tensor.array.shape).tolist()
    wide = tensor.array.astype(np.float32) if tensor.datatype is DataType.BF16 else tensor.array
    return wide.tolist()


def _shown(tensor: Tensor) -> str:
    if tensor.datatype is DataType.BYTES:
        return orjson.dumps(_plain(tensor)).decode()
    text = np.array2string(np.asarray(tensor.array), separator=", ", threshold=40, max_line_width=110)
    return text if "\n" not in text else "\n" + text
