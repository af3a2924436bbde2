"""Answers in TorchServe's form. Names of exceptions are those of its server, by which some clients tell errors apart."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

import orjson

from tpy.errors import ErrorCode, NotFound, TpyError
from tpy.frontends.http.codec import HTTP_STATUS
from tpy.frontends.http.message import HttpReply, headers_of, json_reply

_OUT_OF_RESOURCES: Final = "Out of resources"
"""The error of a model that has no memory left: 507."""

_TYPES: Final = {
    400: "BadRequestException",
    401: "InvalidKeyException",
    403: "InvalidKeyException",
    404: "ResourceNotFoundException",
    405: "MethodNotAllowedException",
    409: "ConflictStatusException",
    501: "UnsupportedOperationException",
    503: "ServiceUnavailableException",
}
_TEXTS: Final = {
    404: "Requested resource is not found, please refer to API document.",
    405: "Requested method is not allowed, please refer to API document.",
}


class UnknownModel(NotFound):
    """A model that is not served."""


class ModelVersionNotFound(NotFound):
    """A version that is not served, of a model that is."""


class WorkflowNotFound(NotFound):
    """A workflow that is not served."""


class WorkflowFailed(TpyError):
    """The failure of a workflow: of one of its nodes."""


class HandlerFailed(TpyError):
    """The failure of a handler, or of the process that it runs in."""

    def __init__(self, error: TpyError) -> None:
        super().__init__(error.message)
        self.error = error


def error_reply(error: TpyError) -> HttpReply:
    """The answer that reports `error`."""
    match error:
        case HandlerFailed():
            status, kind = HTTP_STATUS[error.error.code], "InternalServerException"
        case WorkflowFailed():
            status, kind = HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerException"
        case WorkflowNotFound():
            status, kind = HTTPStatus.NOT_FOUND, "WorkflowNotFoundException"
        case UnknownModel():
            status, kind = HTTPStatus.NOT_FOUND, "ModelNotFoundException"
        case ModelVersionNotFound():
            status, kind = HTTPStatus.NOT_FOUND, "ModelVersionNotFoundException"
        case _:
            status = HTTPStatus.CONFLICT if error.code is ErrorCode.ALREADY_EXISTS else HTTP_STATUS[error.code]
            kind = _TYPES.get(status, "InternalServerException")
    if error.message == _OUT_OF_RESOURCES:
        status = HTTPStatus.INSUFFICIENT_STORAGE
    return document_reply({"code": status, "type": kind, "message": error.message}, status, headers=headers_of(error))


def refusal_reply(status: int, text: str) -> HttpReply:
    """The answer to a request that HTTP itself does not allow, or that no route takes."""
    kind = _TYPES.get(status, "BadRequestException" if status < HTTPStatus.INTERNAL_SERVER_ERROR else "InternalServerException")
    return document_reply({"code": status, "type": kind, "message": _TEXTS.get(status, text)}, status)


def status_reply(text: str) -> HttpReply:
    """An answer that is one sentence."""
    return document_reply({"status": text})


def document_reply(document: Any, status: int = HTTPStatus.OK, *, headers: tuple[tuple[str, str], ...] = ()) -> HttpReply:
    """A document as TorchServe writes it."""
    return json_reply(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n", status=status, headers=headers)
