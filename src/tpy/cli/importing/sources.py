"""Tells by its files what a source is."""

from __future__ import annotations

from pathlib import Path

from tpy.cli.importing.core.mlflow import plan_mlflow
from tpy.cli.importing.core.plan import Plan, Unimportable
from tpy.cli.importing.mlflow import is_mlflow_model, read_mlflow


def plan_of(source: Path, *, trust: bool) -> Plan:
    """The plan for a source. Raises Unimportable for what is none."""
    if not source.exists():
        raise Unimportable("no such file or folder")
    if is_mlflow_model(source):
        return plan_mlflow(read_mlflow(source), trust=trust)
    raise Unimportable("expected the folder of an MLflow model (with an MLmodel); for one model file: tpy init NAME --from FILE")
