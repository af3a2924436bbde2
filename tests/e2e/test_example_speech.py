"""The example `speech`: in a real recording, a sequence model finds speech where it is, as long as it remembers what it heard."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.http

from .examples import Serve, package_file, program, python_command
from .server import ServerProcess

TOLERANCE_S = 0.15
CLIENT = program("speech/client.py")
CHUNKS_PER_S = CLIENT.SAMPLES_PER_S / CLIENT.CHUNK


@pytest.fixture
def server(example_server: Serve) -> ServerProcess:
    return example_server("speech")


@pytest.fixture(scope="module")
def chunks() -> Any:
    package_file("pyannote.audio")
    return CLIENT.chunks(CLIENT.conversation())


def truth() -> list[tuple[float, float]]:
    """The times of speech, by the file beside the recording."""
    spoken: list[tuple[float, float]] = []
    for line in package_file("pyannote.audio", "sample", "sample.rttm").read_text(encoding="utf-8").splitlines():
        begin, length = map(float, line.split()[3:5])
        if spoken and begin < spoken[-1][1]:
            spoken[-1] = spoken[-1][0], max(spoken[-1][1], begin + length)
        else:
            spoken.append((begin, begin + length))
    return spoken


def is_right(probabilities: list[float]) -> bool:
    """Returns True if the segments are the true ones, each end within the tolerance."""
    found, true = np.array(CLIENT.segments(probabilities)), np.array(truth())
    return found.shape == true.shape and bool(np.abs(found - true).max() < TOLERANCE_S)


@pytest.mark.parametrize("model", ["vad", "vad_direct"])
def test_speech_is_found_where_it_is(server: ServerProcess, chunks: Any, model: str) -> None:
    by_http = CLIENT.over_http(server.http, chunks, model)
    assert is_right(by_http), CLIENT.segments(by_http)
    assert CLIENT.over_grpc(server.grpc, chunks, model) == pytest.approx(by_http, abs=1e-5)


@pytest.mark.parametrize("model", ["vad", "vad_direct"])
def test_without_its_memory_the_model_is_wrong(server: ServerProcess, chunks: Any, model: str) -> None:
    """Every chunk begins the sequence anew, which resets the state."""
    forgetful = []
    with tritonclient.http.InferenceServerClient(server.http) as client:
        for chunk in chunks:
            answer = client.infer(model, [chunk_input(chunk)], sequence_id=9, sequence_start=True, sequence_end=False)
            forgetful.append(float(answer.as_numpy("PROBABILITY")[0, 0]))
    assert not is_right(forgetful), CLIENT.segments(forgetful)
    spoken = np.zeros(len(chunks), bool)
    for begin, end in truth():
        spoken[round(begin * CHUNKS_PER_S) : round(end * CHUNKS_PER_S)] = True
    assert np.mean((np.array(forgetful) > CLIENT.SURE) != spoken) > 0.3


def test_many_listen_at_once_and_hear_what_each_would_hear_alone(server: ServerProcess, chunks: Any) -> None:
    """Sequences that began at different places; together they are executed in batches."""
    parts = [np.roll(chunks, -37 * listener, axis=0)[:200] for listener in range(12)]
    alone = [CLIENT.over_grpc(server.grpc, part) for part in parts]
    before = executions(server)
    with ThreadPoolExecutor(len(parts)) as pool:
        together = list(pool.map(lambda part: CLIENT.over_grpc(server.grpc, part), parts))
    for one, other in zip(together, alone, strict=True):
        assert one == pytest.approx(other, abs=1e-5)
    assert executions(server) - before < 12 * 200, "no batches"


def test_the_client_of_the_example_prints_the_segments(server: ServerProcess) -> None:
    for arguments in ([server.http], ["--grpc", server.grpc]):
        done = subprocess.run(python_command("speech/client.py", *arguments), check=True, capture_output=True, text=True)
        lines = [line.replace(" s", "").split(" to ") for line in done.stdout.splitlines()]
        assert np.abs(np.array(lines, float) - np.array(truth())).max() < TOLERANCE_S


def chunk_input(chunk: Any) -> tritonclient.http.InferInput:
    tensor = tritonclient.http.InferInput("INPUT", [1, chunk.size], "FP32")
    tensor.set_data_from_numpy(chunk[np.newaxis])
    return tensor


def executions(server: ServerProcess) -> int:
    with tritonclient.http.InferenceServerClient(server.http) as client:
        return int(client.get_inference_statistics("vad")["model_stats"][0]["execution_count"])
