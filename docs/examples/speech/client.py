"""Find the speech in a recording, chunk by chunk, as it would come from a microphone. The model remembers what it has heard.

Use: python client.py HOST:PORT [FILE.wav]             a request for each chunk, over HTTP
     python client.py --grpc HOST:PORT [FILE.wav]      all chunks on one gRPC stream

The recording has one channel of 16-bit samples, 16000 in a second. Without one, a conversation of half a minute is taken.
"""

from __future__ import annotations

import queue
import sys
import uuid
import wave
from pathlib import Path

import numpy as np

CHUNK = 512
SAMPLES_PER_S = 16_000
SURE = 0.5
SHORTEST_CHUNKS = 4
"""Speech of less than 0.13 s is taken for a noise, and a pause of less for a part of the speech."""


def conversation() -> Path:
    """The recording that ships with pyannote-audio."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from packages import package_file

    return package_file("pyannote.audio", "sample", "sample.wav")


def chunks(recording: Path) -> np.ndarray:
    """FP32[chunks,512], between -1 and 1; what is left at the end is dropped."""
    with wave.open(str(recording)) as file:
        if (file.getframerate(), file.getnchannels(), file.getsampwidth()) != (SAMPLES_PER_S, 1, 2):
            raise SystemExit(f"{recording}: not 16000 samples of 16 bits in a second, in one channel")
        samples = np.frombuffer(file.readframes(file.getnframes()), np.int16)
    return (samples[: len(samples) // CHUNK * CHUNK] / 32768).astype(np.float32).reshape(-1, CHUNK)


def over_http(address: str, pieces: np.ndarray, model: str = "vad") -> list[float]:
    """The probability of speech in each chunk. The sequence goes by a name."""
    from tritonclient.http import InferenceServerClient, InferInput

    name, last = f"recording-{uuid.uuid4()}", len(pieces) - 1
    found = []
    with InferenceServerClient(address) as client:
        for i, piece in enumerate(pieces):
            tensor = InferInput("INPUT", [1, CHUNK], "FP32")
            tensor.set_data_from_numpy(piece[np.newaxis])
            answer = client.infer(model, [tensor], sequence_id=name, sequence_start=i == 0, sequence_end=i == last)
            found.append(float(answer.as_numpy("PROBABILITY")[0, 0]))
    return found


def over_grpc(address: str, pieces: np.ndarray, model: str = "vad") -> list[float]:
    """The same over one stream: nobody waits for an answer before the next chunk is sent. The sequence goes by a number."""
    from tritonclient.grpc import InferenceServerClient, InferInput

    number, last = uuid.uuid4().int >> 65 | 1, len(pieces) - 1
    answers: queue.SimpleQueue = queue.SimpleQueue()
    found = []
    with InferenceServerClient(address) as client:
        client.start_stream(callback=lambda result, error: answers.put((result, error)))
        for i, piece in enumerate(pieces):
            tensor = InferInput("INPUT", [1, CHUNK], "FP32")
            tensor.set_data_from_numpy(piece[np.newaxis])
            client.async_stream_infer(model, [tensor], sequence_id=number, sequence_start=i == 0, sequence_end=i == last)
        for _ in pieces:
            result, error = answers.get(timeout=60)
            if error is not None:
                raise error
            found.append(float(result.as_numpy("PROBABILITY")[0, 0]))
        client.stop_stream()
    return found


def segments(probabilities: list[float]) -> list[tuple[float, float]]:
    """From when to when there is speech, in seconds."""
    speech = np.array([0, *(p > SURE for p in probabilities), 0], np.int8)
    found: list[list[int]] = []
    for first, end in np.flatnonzero(np.diff(speech)).reshape(-1, 2).tolist():
        if found and first - found[-1][1] < SHORTEST_CHUNKS:
            found[-1][1] = end
        else:
            found.append([first, end])
    chunk_s = CHUNK / SAMPLES_PER_S
    return [(first * chunk_s, end * chunk_s) for first, end in found if end - first >= SHORTEST_CHUNKS]


if __name__ == "__main__":
    arguments = sys.argv[1:]
    ask = over_grpc if arguments[:1] == ["--grpc"] else over_http
    address, *files = arguments[ask is over_grpc :]
    for begin, end in segments(ask(address, chunks(Path(files[0]) if files else conversation()))):
        print(f"{begin:6.2f} s to {end:6.2f} s")
