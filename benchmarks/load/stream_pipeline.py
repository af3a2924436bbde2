"""One ModelStreamInfer with a number of requests that are not answered yet: every answer is followed by another request.

    python -m benchmarks.load.stream_pipeline PORT MODEL INPUT OUTSTANDING SECONDS

Sends 16 FP32 numbers to a model that gives them back. Prints how many responses came, and in how long. The first answer is
decoded and compared; the others must be as long as it.
"""

from __future__ import annotations

import sys

from benchmarks.load.stream_client import StreamClient, StreamFailed, framed
from benchmarks.rows.tiny import VALUES
from tpy._proto import message_class

STREAM = 1


class Pipeline(StreamClient):
    """One connection with one stream."""

    def __init__(self, port: int, model: str, name: str, outstanding: int) -> None:
        super().__init__(port, 1)
        message = message_class("inference.ModelInferRequest")(model_name=model)
        message.inputs.add(name=name, datatype="FP32", shape=VALUES.shape)
        message.raw_input_contents.append(VALUES.tobytes())
        self._request = framed(message.SerializeToString())
        self._size = 0
        for _ in range(outstanding):
            self.ask(STREAM, self._request)
        self.flush()

    def answered(self, stream: int, message: memoryview) -> None:
        """Check it, and ask again. Raises StreamFailed for an error or other values."""
        if len(message) != self._size:
            check_answer(bytes(message), expected_size=self._size)
            self._size = len(message)
        self.ask(stream, self._request)


def check_answer(message: bytes, *, expected_size: int) -> None:
    """Raises StreamFailed unless this first message (no size expected yet, 0) gives VALUES back."""
    answer = message_class("inference.ModelStreamInferResponse").FromString(message)
    if answer.error_message:
        raise StreamFailed(f"the server answered: {answer.error_message}")
    if expected_size or list(answer.infer_response.raw_output_contents) != [VALUES.tobytes()]:
        raise StreamFailed(f"an answer of {len(message)} bytes that does not give back what was sent")


def main(port: int, model: str, name: str, outstanding: int, seconds: float) -> None:
    """Warm up for a fifth of the time, then count."""
    pipeline = Pipeline(port, model, name, outstanding)
    pipeline.count(seconds / 5)
    count, elapsed = pipeline.count(seconds)
    print(f"{count} responses in {elapsed:.3f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5]))
