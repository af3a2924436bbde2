"""The servers of an analysis as it sees them: how they can be reached now, and how one comes back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from tpy_tools.analyze.server import OwnServer, ServedModels
from tpy_tools.load import Target
from tpy_tools.load.local import LocalServer


class ServerAccess(msgspec.Struct, frozen=True, kw_only=True):
    """The server as it can be reached now."""

    models: ServedModels
    http: Target
    grpc: Target
    local: LocalServer | None
    headers: Mapping[str, str] = {}
    """Of requests over HTTP; `grpc` has them as metadata."""
    empty_bytes: int = 0
    """Memory of the server's processes before it had a model, where they are on this machine."""

    def target(self, protocol: str) -> Target:
        """The address of a protocol of the load."""
        return self.http if protocol == "http" else msgspec.structs.replace(self.grpc, protocol=protocol)


class ServerPlace(Protocol):
    """A server that may have to be started again."""

    def access(self) -> ServerAccess:
        """The running server. Raises AnalysisError."""
        ...

    def renew(self) -> None:
        """Begin with an empty server, where it is ours: what a configuration leaves behind is not measured with the next."""
        ...

    def recover(self) -> str:
        """Start a server again that has ended. Returns what had happened, "" when it has not ended or is not ours."""
        ...


class OwnPlace:
    """A server that this command starts: started again when a configuration ends it."""

    def __init__(self, server: OwnServer) -> None:
        self._server = server

    def access(self) -> ServerAccess:
        server = self._server
        return ServerAccess(
            models=ServedModels("127.0.0.1", server.http_port),
            http=Target(host="127.0.0.1", port=server.http_port),
            grpc=Target(host="127.0.0.1", port=server.grpc_port, protocol="grpc"),
            local=server.local(),
            empty_bytes=server.empty_bytes,
        )

    def renew(self) -> None:
        self._server.stop()
        self._server.start()

    def recover(self) -> str:
        code = self._server.ended
        if code is None:
            return ""
        self._server.stop()
        self._server.start()
        return f"the server ended with {code}"


class RunningPlace:
    """A server that runs."""

    def __init__(self, access: ServerAccess) -> None:
        self._access = access

    def access(self) -> ServerAccess:
        return self._access

    def renew(self) -> None:
        """No-op: it is not ours."""

    def recover(self) -> str:
        return ""
