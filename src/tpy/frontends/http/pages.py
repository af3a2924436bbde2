"""Pages for somebody who opens the HTTP port in a browser or asks it with curl: links, the models, the routes.

Additions of tpy. A browser (`Accept: text/html`) gets HTML without anything from elsewhere and without scripts, others get JSON.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Final
from urllib.parse import quote

import orjson

from tpy import limits
from tpy.errors import TpyError
from tpy.frontends.http.infer import InferEndpoint
from tpy.frontends.http.message import HttpReply, HttpRequest, json_reply
from tpy.frontends.http.openapi import openapi_document, operations_html, operations_text
from tpy.messages import IndexEntry, ModelDescription, ModelState, TensorDescription

_STYLE: Final = """
:root { color-scheme: light dark; --line: #ddd; --shade: #f3f4f6; --bad: #b00020; --good: #1b7a2f }
@media (prefers-color-scheme: dark) { :root { --line: #444; --shade: #2a2d33; --bad: #ff8a80; --good: #81c784 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; padding: .4rem .8rem .4rem 0; vertical-align: top }
tr + tr { border-top: 1px solid var(--line) }
td:last-child { overflow-wrap: anywhere }
code, pre { font: 14px/1.4 ui-monospace, monospace; background: var(--shade); border-radius: 3px }
pre { padding: .6rem; overflow-x: auto }
summary { cursor: pointer; padding: .2rem 0 }
.reason { color: var(--bad); white-space: pre-wrap }
.UNAVAILABLE { color: var(--bad) }
.READY { color: var(--good) }
"""

_HEADERS: Final = (
    ("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'"),
    ("X-Content-Type-Options", "nosniff"),
)
_LINKS: Final = {
    "models": "/v2/models",
    "server": "/v2",
    "ready": "/v2/health/ready",
    "docs": "/docs",
    "openapi": "/openapi.json",
}


class PagesApi:
    """The handlers of `/`, `/v2/models`, `/docs` and `/openapi.json`."""

    def __init__(self, endpoint: InferEndpoint, *, page: bool = False) -> None:
        """`page`: the page is served, too, and a browser that asks for `/` is sent there."""
        self._endpoint = endpoint
        self._page = page
        self._links = {"page": "/page/", **_LINKS} if page else _LINKS
        self._services = endpoint.services

    async def start(self, request: HttpRequest) -> HttpReply:
        """The server: name, links, and for a browser its models, where it may see the index; or the page."""
        if self._page and _wants_html(request):
            return await redirect_to_page(request)
        metadata = self._services.diagnostics.server_metadata()
        if not _wants_html(request):
            document = {"name": metadata.name, "version": metadata.version, "links": self._links}
            return json_reply(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        ready = "ready" if self._services.repository.server_ready() else "not ready"
        links = " · ".join(f'<a href="{path}">{name}</a>' for name, path in _LINKS.items())
        body = f"<h1>{escape(metadata.name)}</h1><p>tpy {escape(metadata.version)}, {ready} · {links}</p>"
        try:
            self._endpoint.authorize("model-repository", request)
        except TpyError:
            return _html(metadata.name, body)
        return _html(metadata.name, body + self._models_html(await self._services.repository.index()))

    async def models(self, request: HttpRequest) -> HttpReply:
        """The repository index with links."""
        entries = await self._services.repository.index()
        if _wants_html(request):
            return _html("models", f"<h1>Models</h1>{self._models_html(entries)}")
        document = {"models": [_row(entry) for entry in entries]}
        return json_reply(orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))

    async def docs(self, request: HttpRequest) -> HttpReply:
        """The routes, for people."""
        if not _wants_html(request):
            return _text(operations_text())
        return _html("HTTP API", f'<h1>HTTP API</h1><p><a href="/openapi.json">openapi.json</a></p>{operations_html()}')

    async def openapi(self, request: HttpRequest) -> HttpReply:
        """The routes, for programs."""
        return json_reply(openapi_document())

    def _models_html(self, entries: Sequence[IndexEntry]) -> str:
        shown = entries[: limits.PAGE_MODELS_MAX]
        rows = "".join(self._model_html(entry) for entry in shown)
        more = (
            f"<p>and {len(entries) - len(shown)} more: <code>/v2/models</code> has all</p>" if len(entries) > len(shown) else ""
        )
        if not entries:
            return "<p>No models. <code>tpy init NAME --from FILE</code> makes a folder of a trained one.</p>"
        return f"<table><tr><th>model</th><th>version</th><th>state</th><th></th></tr>{rows}</table>{more}"

    def _model_html(self, entry: IndexEntry) -> str:
        version = "" if entry.version is None else str(entry.version)
        state = "not loaded" if entry.state is None else entry.state.value
        about = ""
        if entry.reason:
            about = f'<div class="reason">{escape(entry.reason[: limits.PAGE_REASON_CHARACTERS_MAX])}</div>'
        path = escape(_path(entry))
        if entry.state is ModelState.READY:
            try:
                about += _about(self._services.inference.resolve(entry.name, entry.version).description)
                about += f'<br><a href="{path}/config">configuration</a> · <a href="{path}/stats">statistics</a>'
            except TpyError as error:  # gone meanwhile, or a name of several repositories
                about += escape(error.message)
        link = f'<a href="{path}">{escape(entry.name)}</a>'
        return f'<tr><td>{link}</td><td>{version}</td><td class="{state}">{state}</td><td>{about}</td></tr>'


async def redirect_to_page(request: HttpRequest) -> HttpReply:
    """From `/page` to the place that the page's files are relative to. A relative address: a proxy may have put the server
    below another path."""
    return HttpReply(status=308, content_type="text/plain", headers=(("Location", "page/"),))


def _about(description: ModelDescription) -> str:
    given, found = (", ".join(_tensor(each) for each in tensors) for tensors in (description.inputs, description.outputs))
    return f"<code>{escape(given)}</code> → <code>{escape(found)}</code>"


def _tensor(tensor: TensorDescription) -> str:
    return f"{tensor.name} {tensor.datatype.value}[{','.join(map(str, tensor.shape))}]"


def _row(entry: IndexEntry) -> dict[str, object]:
    row: dict[str, object] = {"name": entry.name}
    if entry.version is not None:
        row["version"] = str(entry.version)
    if entry.state is not None:
        row["state"] = entry.state.value
    if entry.reason:
        row["reason"] = entry.reason
    return row | {"metadata": _path(entry)}


def _path(entry: IndexEntry) -> str:
    version = "" if entry.version is None else f"/versions/{entry.version}"
    return f"/v2/models/{quote(entry.name, safe='')}{version}"


def _wants_html(request: HttpRequest) -> bool:
    return b"text/html" in request.fields.get(b"accept", b"")


def _html(title: str, body: str) -> HttpReply:
    page = (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>"
        f"<body>{body}</body></html>\n"
    ).encode(errors="replace")
    return HttpReply(content_type="text/html; charset=utf-8", parts=(page,), content_length=len(page), headers=_HEADERS)


def _text(text: str) -> HttpReply:
    body = text.encode()
    return HttpReply(content_type="text/plain; charset=utf-8", parts=(body,), content_length=len(body), headers=_HEADERS)
