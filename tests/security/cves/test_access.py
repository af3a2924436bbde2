"""Ways round a check of who may do what, and memory that belongs to another request."""

from __future__ import annotations

import json

import grpc

from tests.security.attacker import Attacker, tensor
from tpy._proto import message_class

from .calls import binary, infer_message, refused


def _is_closed(attacker: Attacker) -> bool:
    """Returns True if nothing was loaded without the key."""
    return attacker.ask("GET", "/v2/models/copy/ready").status != 200


def test_cve_2026_47481(restricted: Attacker) -> None:
    """288, authentication bypass by another route: the same call on the other ports."""
    for method, message in (("RepositoryModelLoad", "RepositoryModelLoadRequest"), ("RepositoryIndex", "RepositoryIndexRequest")):
        request = message_class(f"inference.{message}")()
        assert "restricted" in refused(restricted, method, request).text
    for address in (restricted.server.http, restricted.server.metrics):
        for answer in restricted.exchange(
            b"POST /v2/repository/models/copy/load HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{}", address
        ):
            assert answer.status in (403, 404, 405)
    assert _is_closed(restricted)


def test_cve_2026_24207(restricted: Attacker) -> None:
    """288, authentication bypass by another route: other spellings of its path."""
    for path in (
        "/v2//repository/models/copy/load",
        "/v2/repository/models/copy/load/",
        "/v2/./repository/models/copy/load",
        "/v2/health/../repository/models/copy/load",
        "/V2/repository/models/copy/load",
        "/v2/repository%2fmodels/copy/load",
        "/v2/repository/models/copy/%6coad",
        "http://x/v2/repository/models/copy/load",
    ):
        for method in ("POST", "PUT", "post"):
            [answer] = restricted.exchange(f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\n{{}}".encode())
            assert answer.status in (400, 403, 404, 405), (method, path)
    assert _is_closed(restricted)


def test_cve_2026_24206(restricted: Attacker) -> None:
    """288, authentication bypass by another route: other headers, and other metadata."""
    for header in ("X-Admin:", "X-Admin: SECRET", "X_Admin: secret", "X-Admin: secret, secret", "Authorization: secret"):
        assert restricted.ask("POST", "/v2/repository/models/copy/load", b"{}", header).status in (400, 403), header
    request = message_class("inference.RepositoryModelLoadRequest")(model_name="copy")
    for metadata in ((("admin", "secret"),), (("triton-grpc-protocol-admin", "SECRET"),), (("triton-grpc-protocol-admin", ""),)):
        assert "restricted" in refused(restricted, "RepositoryModelLoad", request, metadata=metadata).text
    assert _is_closed(restricted)


def test_cve_2024_0103(attacker: Attacker) -> None:
    """1419, wrong initialization: a request whose data did not come whole, on a bad network, must not be answered with memory
    that another one left."""
    secret = [7.0, 8.0, 9.0]
    for model in ("affine", "copy"):
        assert attacker.infer({"inputs": [tensor(secret)]}, model).status == 200
    head = (
        json.dumps({"inputs": [{**tensor(None), "parameters": {"binary_data_size": 12}}]}).replace('"data": null, ', "").encode()
    )
    for model in ("affine", "copy"):
        begun = f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: {len(head)}\r\n"
        whole = f"{begun}Content-Length: {len(head) + 12}\r\n\r\n".encode() + head
        assert not [answer for answer in attacker.exchange(whole + bytes(5)) if answer.status == 200]
    assert binary(attacker, {"shape": [1, 3], "parameters": {"binary_data_size": 5}}, bytes(5)) == 400
    assert refused(attacker, "ModelInfer", infer_message(bytes(5))).code is grpc.StatusCode.INVALID_ARGUMENT
