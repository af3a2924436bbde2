"""Answers about models whose size a configuration decides."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import grpc
from tritonclient.grpc import service_pb2 as pb

from tests.e2e.repositories import AFFINE_CONFIG, ModelFolder

from .arena import Arena, Outcome, measured, serving

_PARAMETERS = 15_000
_TIMES = 5
_PATIENCE_S = 30.0
_PATH = "/inference.GRPCInferenceService/ModelConfig"


def large_configuration(folder: Path) -> Outcome:
    """Clients of both protocols ask again and again for a configuration of 15,000 parameters."""
    parameters = "".join(
        f'parameters {{ key: "parameter{number}" value {{ string_value: "x" }} }}\n' for number in range(_PARAMETERS)
    )

    def write(repository: Path) -> None:
        ModelFolder(repository, "large").config(AFFINE_CONFIG + parameters).affine(1, 2.0)

    with serving(folder, write=write) as arena, measured(arena) as outcome:
        threads = [threading.Thread(target=ask, args=(arena,)) for ask in (_ask_http, _ask_grpc)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return outcome


def _ask_http(arena: Arena) -> None:
    for _ in range(_TIMES):
        status, body = arena.ask("GET", "/v2/models/large/config", timeout_s=_PATIENCE_S)
        arena.outcome.lost += status != 200 or len(json.loads(body)["parameters"]) != _PARAMETERS


def _ask_grpc(arena: Arena) -> None:
    options = (("grpc.max_receive_message_length", -1),)
    with grpc.insecure_channel(arena.server.grpc, options=options) as channel:
        call = channel.unary_unary(_PATH, response_deserializer=pb.ModelConfigResponse.FromString)
        request = pb.ModelConfigRequest(name="large").SerializeToString()
        for _ in range(_TIMES):
            arena.outcome.lost += len(call(request, timeout=_PATIENCE_S).config.parameters) != _PARAMETERS
