"""Writes a network of convolutions as a SavedModel, for LiteRT and for OpenVINO, a pipeline of DALI, trees of LightGBM and a
pipeline of scikit-learn, where these are there.

A separate program, because the frameworks are large: `python -m benchmarks.framework_models DIRECTORY`.
"""

from __future__ import annotations

import itertools
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

SIDE = 96
FEATURES = 30
_CHANNELS = (3, 64, 128, 128, 128)
"""Before and after each convolution: some ten milliseconds for an image, as small networks for pictures take."""


def _save_networks(folder: Path) -> None:
    import tensorflow as tf

    draw = np.random.default_rng(5)
    kernels = [
        draw.standard_normal((3, 3, before, after), dtype=np.float32) * (2 / (9 * before)) ** 0.5
        for before, after in itertools.pairwise(_CHANNELS)
    ]

    class Network(tf.Module):  # type: ignore[misc]  # not typed for us
        @tf.function(input_signature=[tf.TensorSpec([None, SIDE, SIDE, 3], tf.float32, name="image")])
        def classify(self, image: Any) -> dict[str, Any]:
            for number, kernel in enumerate(kernels):
                image = tf.nn.relu(tf.nn.conv2d(image, kernel, 1 + number % 2, "SAME"))
            return {"scores": tf.reduce_mean(image, [1, 2])}

    network = Network()
    saved = folder / "model.savedmodel"
    tf.saved_model.save(network, str(saved), signatures={"serving_default": network.classify})
    if find_spec("ai_edge_litert"):
        converter = tf.lite.TFLiteConverter.from_saved_model(str(saved), signature_keys=["serving_default"])
        (folder / "model.tflite").write_bytes(converter.convert())
    if find_spec("openvino"):
        import openvino

        openvino.save_model(openvino.convert_model(str(saved)), folder / "model.xml", compress_to_fp16=False)


def _save_pipeline(folder: Path) -> None:
    from nvidia import dali
    from nvidia.dali import fn, types

    @dali.pipeline_def(batch_size=8, num_threads=1, device_id=None, output_dtype=types.FLOAT, output_ndim=3)
    def pipe() -> Any:
        image = fn.external_source(device="cpu", name="image", dtype=types.FLOAT, ndim=3, layout="HWC")
        image = fn.gaussian_blur(fn.resize(image, resize_x=224, resize_y=224), window_size=21)
        return fn.crop_mirror_normalize(image, dtype=types.FLOAT, output_layout="CHW", mean=[0.5] * 3, std=[0.5] * 3, name="made")

    pipe().serialize(filename=str(folder / "model.dali"))


def _samples() -> tuple[Any, Any]:
    """Rows of features, and the class of each."""
    rows = np.random.default_rng(5).standard_normal((5_000, FEATURES), dtype=np.float32)
    return rows, (rows[:, :3].sum(axis=1) > 0).astype(int)


def _save_trees(folder: Path) -> None:
    import lightgbm

    rows, classes = _samples()
    options = {"objective": "binary", "num_leaves": 31, "num_threads": 1, "verbose": -1}
    lightgbm.train(options, lightgbm.Dataset(rows, classes), 200).save_model(folder / "model.txt")


def _save_estimator(folder: Path) -> None:
    from sklearn import linear_model, pipeline, preprocessing
    from skops import io

    steps = preprocessing.StandardScaler(), preprocessing.PolynomialFeatures(2), linear_model.LogisticRegression(max_iter=50)
    io.dump(pipeline.make_pipeline(*steps).fit(*_samples()), folder / "model.skops")


def is_installed(module: str) -> bool:
    """Returns whether a module can be found; nothing of it is imported but its parent."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if is_installed("tensorflow"):
        _save_networks(folder)
    if is_installed("nvidia.dali"):
        _save_pipeline(folder)
    if is_installed("lightgbm"):
        _save_trees(folder)
    if is_installed("skops"):
        _save_estimator(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
