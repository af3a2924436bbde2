"""A plan as text, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

import orjson

from tpy.echo import echo
from tpy_tools.commands.importing.core.plan import ImportPlan, ModelPlan, Part


def as_text(plan: ImportPlan, repository: PurePath, *, dry_run: bool) -> str:
    """The lines to print."""
    lines: list[str] = []
    for model in plan.models:
        lines += [f"{model.name}, from {plan.kind}, {'would become' if dry_run else 'is now'} {repository / model.name}"]
        lines += _table("carried over", model.carried)
        lines += _table("not carried over", model.lost)
        lines += [f"  next: {step}" for step in steps_of(model, repository)]
    lines += _table("not imported", plan.refused, indent="")
    done = len(plan.models)
    lines.append(f"{done} {'model' if done == 1 else 'models'} {'to import' if dry_run else 'imported'}, {len(plan.refused)} not")
    if plan.models and not dry_run:
        lines.append(f"serve: tpy serve {repository}")
    return "\n".join(_printable(line) for line in lines)


def steps_of(model: ModelPlan, repository: PurePath) -> list[str]:
    """The steps that are left to the user."""
    return [step.replace("{model}", str(repository / model.name)) for step in model.steps]


def _table(title: str, parts: Sequence[Part], indent: str = "  ") -> list[str]:
    width = max((len(part.source) for part in parts), default=0)
    rows = [f"{indent}  {part.source:<{width}}  {part.becomes}" for part in parts]
    return [f"{indent}{title}:", *rows] if rows else []


def _printable(line: str) -> str:
    """The line without what a terminal would obey: names and texts are those of the source."""
    return "".join(each if each.isprintable() else "?" for each in echo(line))


def as_json_text(plan: ImportPlan, repository: PurePath) -> str:
    """The plan as a document."""
    document = {
        "from": plan.kind,
        "models": [
            {
                "name": model.name,
                "folder": str(repository / model.name),
                "backend": model.config.backend,
                "carried": _rows(model.carried),
                "not_carried": _rows(model.lost),
                "next": steps_of(model, repository),
            }
            for model in plan.models
        ],
        "not_imported": [{"model": part.source, "reason": part.becomes} for part in plan.refused],
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _rows(parts: Sequence[Part]) -> list[dict[str, str]]:
    return [{"part": part.source, "becomes": part.becomes} for part in parts]
