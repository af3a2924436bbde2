"""`tpy init`: its options."""

from __future__ import annotations

from pathlib import Path

import click


@click.command()
@click.argument("name")
@click.option(
    "--from", "source", required=True, metavar="FILE", type=click.Path(path_type=Path), help="The trained model, or a model.py."
)
@click.option(
    "--repository",
    default="models",
    show_default=True,
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Repository for the new folder; created if missing.",
)
@click.option(
    "--as",
    "form",
    type=click.Choice(["onnx", "python", "torchscript", "pytorch", "fil", "litert", "openvino", "tensorflow"]),
    help="Format or backend to serve the model in.",
)
@click.option(
    "--env",
    "environment",
    metavar="DIRECTORY",
    type=click.Path(path_type=Path),
    help="Virtual environment that the model was made in: it is converted there, and a model.py runs there.",
)
@click.option(
    "--input", "inputs", multiple=True, metavar="NAME:TYPE:SIZES", help="An input, for one row, if the file does not describe it."
)
@click.option(
    "--class", "network", default="", metavar="FILE:CLASS", help="Class of the network, if the file has its weights only."
)
def init(
    name: str,
    source: Path,
    repository: Path,
    form: str | None,
    environment: Path | None,
    inputs: tuple[str, ...],
    network: str,
) -> None:
    """Make a model folder of a trained model: ONNX (.onnx), scikit-learn (.joblib, .pkl), PyTorch (.pt, .pt2), XGBoost (.json,
    .ubj), LightGBM (.txt), treelite (.tl), Keras (.keras), LiteRT (.tflite), OpenVINO (.xml), the folder of a SavedModel, or a
    model.py.
    Loading a pickle runs code that is in it: only files that you trust."""
    from tpy_tools.commands.init.create import InitRequest, create
    from tpy_tools.commands.init.sources import ModelForm, parse_input

    request = InitRequest(
        name=name,
        source=source,
        repository=repository,
        form=None if form is None else ModelForm(form),
        inputs=[parse_input(text) for text in inputs],
        environment=environment,
        network=network,
    )
    click.echo("\n".join(create(request)))
