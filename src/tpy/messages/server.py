"""The server as callers see it."""

from __future__ import annotations

import msgspec


class ServerMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of `GET /v2`."""

    name: str
    version: str
    extensions: tuple[str, ...]


class GpuUse(msgspec.Struct, frozen=True, kw_only=True):
    """The use of one GPU by all processes of the machine. `id` is CUDA's number for it, `utilization` is from 0 to 1. None: its
    driver does not tell."""

    id: int
    uuid: str
    utilization: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None


LOG_FORMATS = ("default", "ISO8601", "json", "plain")


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The logging extension's settings. `log_format` is one of LOG_FORMATS, of which "json" and "plain" are ours."""

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"


class AuditLogOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`file` is a path, "-" for standard error, "" for no audit log. `required`: what cannot be logged is not done."""

    file: str = ""
    required: bool = False


class LogLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A line of the log. Numbers count from 1 since the start of the server."""

    number: int
    text: str
