"""Files beside the model that its configuration names: labels, warmup data, initial states. Blocking; runs in a loader thread."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from tpy.config import ModelConfig
from tpy.errors import Internal, InvalidArgument
from tpy.files import read_file
from tpy.limits import MODEL_DATA_BYTES_MAX, MODEL_TEXT_BYTES_MAX

_LENGTH_BYTES = 4


def read_labels(config: ModelConfig, model_directory: Path) -> dict[str, tuple[str, ...]]:
    """The lines of each output's label file, by output name. Raises InvalidArgument or Internal as `read_beside`."""
    labels = {}
    for output in config.output:
        if output.label_filename:
            text = read_beside(model_directory, output.label_filename, bytes_max=MODEL_TEXT_BYTES_MAX).decode(
                "utf-8", errors="replace"
            )
            labels[output.name] = _lines(text)
    return labels


def _lines(text: str) -> tuple[str, ...]:
    """Only a newline ends a label. `splitlines` would also cut at form feeds and the line separators of Unicode, which are labels
    of their own where a model tells characters apart, and every label behind one would be wrong."""
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")) if text else ()


def strings_in(content: bytes, count: int) -> list[bytes]:
    """The first `count` BYTES elements of a file, each behind its length (4 bytes, little-endian); as many as are whole."""
    strings: list[bytes] = []
    at = 0
    while len(strings) < count:
        begin = at + _LENGTH_BYTES
        at = begin + int.from_bytes(content[at:begin], "little")
        if begin > len(content) or at > len(content):
            break
        strings.append(content[begin:at])
    return strings


def read_beside(directory: Path, name: str, *, bytes_max: int = MODEL_DATA_BYTES_MAX) -> bytes:
    """The content of the regular file `directory/name`.

    Raises InvalidArgument for a name that leads out of the directory: configurations come from load requests too, and what
    is read here can be asked for over the network. Raises Internal, with Triton's text, for a file that cannot be read.
    """
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts:
        raise InvalidArgument(f"file '{name}' in the model configuration must stay inside the model's directory")
    path = directory / relative
    try:
        return read_file(path, bytes_max=bytes_max)
    except OSError as error:
        raise Internal(f"failed to open text file for read {path}: {error.strerror or error}") from error
