"""The process of a compiled cache: `python -m tpy_native.caches.process`, started by the server (`compiled`)."""

from __future__ import annotations

from pathlib import Path

import orjson

from tpy_native.caches.compiled import CacheLibrary, CacheServer
from tpy_native.process.serving import Ask, serve


def _open(settings: dict[str, str], _: Ask) -> CacheServer:
    return CacheServer(CacheLibrary(settings["name"], Path(settings["library"]), orjson.loads(settings["settings"])))


if __name__ == "__main__":
    serve(_open)
