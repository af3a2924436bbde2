"""The corpus: histories that failed once, each in its own file. They are always tried first.

A file holds the target's name, what was found, and the history: the choices of a tape (see `fuzz.chance`) or, for targets that
take any bytes, the bytes. Numbers beyond what JSON readers agree on are written as hexadecimal texts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fuzz.chance import Tape
from fuzz.target import Target

FOLDER = Path(__file__).parent / "corpus"
_PLAIN_MAX = 2**53


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """A history that failed. Either `choices` or `data`, bytes, is there."""

    target: str
    found: str
    choices: Sequence[int] | None = None
    data: bytes | None = None


def entries(target: str, folder: Path = FOLDER) -> Iterator[Path]:
    """The files of a target, in order of their names."""
    yield from sorted((folder / target).glob("*.json"))


def read(path: Path) -> Entry:
    """Raises ValueError where it is not an entry."""
    try:
        document = json.loads(path.read_text())
        choices, data = document.get("choices"), document.get("bytes")
        return Entry(
            target=document["target"],
            found=document["found"],
            choices=None if choices is None else [int(each, 16) if isinstance(each, str) else each for each in choices],
            data=None if data is None else bytes.fromhex(data),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} is not a corpus file: {error!r}") from error


def write(entry: Entry, name: str, folder: Path = FOLDER) -> Path:
    """Write the file; its path, as it is given to --replay."""
    path = folder / entry.target / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    document: dict[str, object] = {
        "target": entry.target,
        "found": entry.found,
        "replay": f"python -m fuzz --replay {shown(path)}",
    }
    if entry.choices is not None:
        document["choices"] = [each if each <= _PLAIN_MAX else hex(each) for each in entry.choices]
    if entry.data is not None:
        document["bytes"] = entry.data.hex()
    text = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in document.items())
    path.write_text(f"{{\n{text}\n}}\n")
    return path


def shown(path: Path) -> str:
    """The path from the working folder on, where it lies within."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def try_entry(target: Target, entry: Entry) -> int:
    """Try the history again; its number of steps. Raises what it failed with, should it fail still."""
    if entry.data is not None:
        if target.attack is None:
            raise ValueError(f"{target.name} takes no bytes")
        return target.attack(entry.data)
    return target.run(Tape(numbers=entry.choices or ()))
