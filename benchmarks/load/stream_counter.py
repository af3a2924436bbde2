"""Counts the responses of a decoupled model over ModelStreamInfer.

    python -m benchmarks.load.stream_counter PORT MODEL RESPONSES STREAMS SECONDS

Each stream asks the model for RESPONSES responses, and again when it has them. Prints how many responses came, and in how long.
"""

from __future__ import annotations

import sys

import numpy as np

from benchmarks.load.stream_client import StreamClient, framed
from tpy._proto import message_class


class Counter(StreamClient):
    """One connection with several streams."""

    def __init__(self, port: int, model: str, responses: int, streams: int) -> None:
        super().__init__(port, streams)
        message = message_class("inference.ModelInferRequest")(model_name=model)
        message.inputs.add(name="COUNT", datatype="INT32", shape=[1])
        message.raw_input_contents.append(np.array([responses], np.int32).tobytes())
        self._request = framed(message.SerializeToString())
        self._responses = responses
        self._left = dict.fromkeys(self.streams, responses)
        for stream in self.streams:
            self.ask(stream, self._request)
        self.flush()

    def answered(self, stream: int, message: memoryview) -> None:
        """Ask again after the last one."""
        self._left[stream] -= 1
        if self._left[stream] <= 0:
            self._left[stream] = self._responses
            self.ask(stream, self._request)


def main(port: int, model: str, responses: int, streams: int, seconds: float) -> None:
    """Warm up for a fifth of the time, then count."""
    counter = Counter(port, model, responses, streams)
    counter.count(seconds / 5)
    count, elapsed = counter.count(seconds)
    print(f"{count} responses in {elapsed:.3f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
