"""The page's files: complete, small, from nowhere else, with a policy; served where they are to be and without a key."""

from __future__ import annotations

import gzip
import re
from collections.abc import Iterator

from tpy.config.schema import MODEL_CONFIG, MessageSchema
from tpy_page.page_files import page_files

from .fakes import FakeServices
from .harness import get, running

COMPRESSED_BYTES_MAX = 300_000


async def test_every_file_is_served_with_the_policy() -> None:
    async with running(FakeServices(), page=True) as server:
        client = await server.connect()
        for path in ("", *page_files()):
            answer = await client.ask(get(f"/page/{path}"))
            assert answer.status == 200
            policy = answer.headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'")
            assert "unsafe" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        index = await client.ask(get("/page/"))
        assert index.headers["content-type"] == "text/html; charset=utf-8"
        same = await client.ask(get("/page/", f"If-None-Match: {index.headers['etag']}"))
        assert (same.status, same.body) == (304, b"")
        moved = await client.ask(get("/page"))
        assert (moved.status, moved.headers["location"]) == (308, "page/")


async def test_other_files_are_not() -> None:
    async with running(FakeServices(), page=True) as server:
        client = await server.connect()
        for path in ("no.js", "..%2fapp.py", "../app.py", ".", "%2e%2e/app.py"):
            assert (await client.ask(get(f"/page/{path}"))).status == 404, path


async def test_the_page_is_off_unless_asked_for() -> None:
    async with running(FakeServices()) as server:
        client = await server.connect()
        for path in ("/page", "/page/", "/page/main.js"):
            assert (await client.ask(get(path))).status == 404


def test_every_field_of_a_configuration_has_words() -> None:
    words = set(re.findall(r'^  "?([\w.]+)"?: "', page_files()["fields.js"].content.decode(), re.MULTILINE))
    seen: set[str] = set()

    def missing(schema: MessageSchema, parent: str) -> Iterator[str]:
        for field in schema.fields.values():
            if field.name not in words and f"{parent}.{field.name}" not in words:
                yield f"{parent}.{field.name}"
            if isinstance(field.kind, MessageSchema) and (place := f"{field.name}: {field.kind.full_name}") not in seen:
                seen.add(place)
                yield from missing(field.kind, field.name)

    assert list(missing(MODEL_CONFIG, "")) == []
    assert len(seen) > 40


def test_it_is_small_and_whole() -> None:
    files = page_files()
    assert len(gzip.compress(b"".join(file.content for file in files.values()))) < COMPRESSED_BYTES_MAX
    for name, (content, _) in files.items():
        text = content.decode()
        assert not re.search(r"(?:src|href|import|from|url\()\s*=?\s*['\"(]?\s*(?:https?:)?//", text), name
        for imported in re.findall(r'from "\./([^"]+)"', text):
            assert imported in files, (name, imported)
