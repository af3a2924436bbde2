"""The page's files: HTML, a style sheet and JavaScript modules, as they are in the package. They are the same for everybody and
say nothing about the server; what they show they ask the API for, with the key that the reader gives them."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from tpy.errors import NotFound
from tpy.frontends.http.message import HttpReply, HttpRequest

_TYPES: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
_INDEX: Final = "index.html"
_POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; media-src blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = (
    ("Content-Security-Policy", _POLICY),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Referrer-Policy", "no-referrer"),
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Cache-Control", "no-cache"),
)


async def page_file(request: HttpRequest, *, file: str = _INDEX) -> HttpReply:
    """A file of the page. Raises NotFound."""
    found = page_files().get(file)
    if found is None:
        raise NotFound("there is no such file")
    content, tag = found
    headers = (*_HEADERS, ("ETag", tag))
    kind = _TYPES[file.rpartition(".")[2]]
    if tag.encode() in request.fields.get(b"if-none-match", b""):
        return HttpReply(status=304, content_type=kind, headers=headers)
    return HttpReply(content_type=kind, parts=(content,), content_length=len(content), headers=headers)


class PageFile(NamedTuple):
    """A file, with the tag by which browsers ask whether it has changed."""

    content: bytes
    tag: str


@cache
def page_files() -> dict[str, PageFile]:
    """The files by name. Read once: they are small."""
    folder = files("tpy_page") / "files"
    return {file.name: _page_file(file.read_bytes()) for file in folder.iterdir() if file.name.rpartition(".")[2] in _TYPES}


def _page_file(content: bytes) -> PageFile:
    return PageFile(content, f'"{hashlib.sha256(content).hexdigest()[:32]}"')
