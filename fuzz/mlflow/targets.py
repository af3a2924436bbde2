"""A table in a body of MLflow's scoring protocol: in every form it is the same tensors; a body that is broken is refused."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from fuzz.chance import Chance
from fuzz.target import Target, Violation
from tpy.errors import InvalidArgument
from tpy.messages import DataType, ModelDescription, TensorDescription
from tpy_platforms.mlflow.core.columns import Columns, read_csv, read_json
from tpy_platforms.mlflow.core.signature import Field, MlflowModel
from tpy_platforms.mlflow.core.tensors import ModelRequests, asked_of

INVARIANT = (
    "the rows of a table come to the model in their order, with columns in the order of the signature, each in one batch, in "
    "whichever form they are sent; a body that is broken is refused"
)

_NAMES = ("a", "b", "c d", "ü", "0")
_NUMBERS = (0.0, 1.0, -2.5, 3e20, 0.1)
_BROKEN: tuple[object, ...] = (
    None,
    [],
    {},
    "x",
    7,
    True,
    [[]],
    [{}],
    {"data": [[1], 2]},
    {"columns": [None], "data": [[1]]},
    [1, [2]],
)
_FORMS = ("dataframe_split", "dataframe_records", "instances", "inputs", "by row", "csv")

Table = tuple[list[str], list[list[float]]]


def run(chance: Chance) -> int:
    """One body; its number of rows."""
    return _try(chance, asked_of)


def run_canary(chance: Chance) -> int:
    """The same with a reader that takes columns as they come."""
    return _try(chance, _as_they_come)


def _as_they_come(columns: Columns, description: ModelDescription, model: MlflowModel) -> ModelRequests:
    return asked_of(columns, description, msgspec.structs.replace(model, inputs=()))


def _try(chance: Chance, ask: Callable[[Columns, ModelDescription, MlflowModel], ModelRequests]) -> int:
    names = chance.sample(_NAMES, chance.randint(1, len(_NAMES)))
    rows = [[chance.choice(_NUMBERS) for _ in names] for _ in chance.rounds((1, 3, 9))] or [[1.0] * len(names)]
    most = chance.randint(1, 4)
    tensor = TensorDescription(name="X", datatype=DataType.FP64, shape=(-1, len(names)))
    description = ModelDescription(
        name="m",
        version=1,
        platform="",
        max_batch_size=most,
        decoupled=False,
        inputs=(tensor,),
        outputs=(),
        input_by_name={"X": tensor},
        output_by_name={},
    )
    model = MlflowModel(flavor="sklearn", inputs=tuple(Field(name=name, type="double") for name in names))
    if chance.random() < 0.3:
        chance.took("broken")
        _refuse(chance, ask, description, model)
        return 1
    form = chance.choice(_FORMS)
    chance.took(form)
    order = chance.sample(range(len(names)), len(names))
    shuffled = [names[at] for at in order], [[row[at] for at in order] for row in rows]
    columns = read_csv(_csv(*shuffled)) if form == "csv" else read_json(json.dumps(_document(form, *shuffled)).encode())
    batches = ask(columns, description, model).batches
    if any(len(batch) != 1 or not 0 < len(batch[0].array) <= most for batch in batches):
        raise Violation(f"{form}: batches of {[batch[0].array.shape for batch in batches]}, max_batch_size {most}")
    found = np.concatenate([batch[0].array for batch in batches]).tolist()
    if found != rows:
        raise Violation(f"{form} of {shuffled}: {found}, expected {rows}")
    return len(rows)


def _csv(names: list[str], rows: list[list[float]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows([names, *rows])
    return text.getvalue().encode()


def _document(form: str, names: list[str], rows: list[list[float]]) -> dict[str, Any]:
    records = [dict(zip(names, row, strict=True)) for row in rows]
    match form:
        case "dataframe_split":
            return {form: {"columns": names, "data": rows}}
        case "inputs":
            return {form: {name: [row[at] for row in rows] for at, name in enumerate(names)}}
        case "by row":
            return {"inputs": records}
        case _:
            return {form: records}


def _refuse(
    chance: Chance,
    ask: Callable[[Columns, ModelDescription, MlflowModel], ModelRequests],
    description: ModelDescription,
    model: MlflowModel,
) -> None:
    body = chance.choice(
        (
            json.dumps(
                {chance.choice(_FORMS): chance.choice(_BROKEN), "params": chance.choice((None, {}, {"a": 1}, []))}
            ).encode(),
            bytes(chance.randrange(256) for _ in chance.rounds((4, 30))),
        )
    )
    for read in (read_json, read_csv):
        try:
            asked = ask(read(body), description, model)
        except InvalidArgument:
            continue
        if any(not len(batch[0].array) for batch in asked.batches):
            raise Violation(f"{body!r} gives an empty batch")


BODIES = Target(
    name="mlflow_bodies",
    invariant=INVARIANT,
    run=run,
    smoke_examples=300,
    rules=("broken", *_FORMS),
)
CANARY = Target(name="mlflow_bodies_canary", invariant=INVARIANT, run=run_canary, smoke_examples=300, must_fail=True)
