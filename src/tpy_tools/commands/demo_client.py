"""`tpy demo FILE`: ask a running demo server (`make serve`) what a file is, and what is on it if it is a picture.

A client like any other: HTTP, the binary tensor extension, nothing of the server's own.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from tpy.messages import DataType, Tensor
from tpy_tools.commands.client import Client, ClientError

_TOP = 3


class Guess(msgspec.Struct, frozen=True):
    """A label and its probability."""

    label: str
    probability: float


class DemoClient:
    """Asks the models of the demo. Raises ClientError."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def features(self, model: str, input_name: str, output_name: str, content: bytes) -> Tensor:
        """The tensor that a preprocessing model makes of a file."""
        file = np.array([[content]], dtype=object)
        return self._infer(model, Tensor(input_name, DataType.BYTES, file), output_name, {})

    def classify(self, model: str, tensor: Tensor, output_name: str, count: int) -> list[Guess]:
        """The `count` likeliest classes, best first."""
        output = self._infer(model, tensor, output_name, {"classification": count})
        rows = [element.decode().split(":") for element in output.array.reshape(-1)]
        return [Guess(label=row[2] if len(row) > 2 else row[1], probability=float(row[0])) for row in rows]

    def _infer(self, model: str, tensor: Tensor, output_name: str, parameters: dict[str, int]) -> Tensor:
        try:
            return self._client.infer(model, [tensor], outputs={output_name: parameters})[0]
        except ClientError as error:
            raise ClientError(f"{model}: {error}" if error.status else str(error), error.status) from error


def describe_file(client: DemoClient, path: Path) -> list[str]:
    """Lines that say what the file is."""
    content = path.read_bytes()
    tensor = client.features("file_features", "FILE", "bytes", content)
    kind = client.classify("magika", tensor, "target_label", 1)[0]
    lines = [f"{path.name}: {kind.label} ({kind.probability:.1%} sure)"]
    if kind.label in {"png", "jpeg", "gif", "bmp", "webp", "tiff"}:
        tensor = client.features("image_features", "IMAGE", "INPUT", content)
        guesses = client.classify("efficientnet_lite0", tensor, "PROBABILITIES", _TOP)
        lines.extend(f"  {guess.probability:6.1%}  {guess.label}" for guess in guesses)
    return lines
