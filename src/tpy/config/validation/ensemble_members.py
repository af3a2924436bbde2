"""Checks an ensemble against the models of its steps: every input fed, types and shapes equal, decoupled flows not mixed.

Needs the models' configurations as their backends completed them, so it is asked when they are loaded. Triton's rules, in its
order and with its texts; the first disagreement is told.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from tpy.config.model_config import EnsembleStep, ModelConfig, ModelInput, ModelOutput
from tpy.errors import InvalidArgument
from tpy.messages.datatypes import DataType

_Dims = tuple[int, ...]


class _Node:
    """An ensemble tensor as the first one that mentions it has it: `model` is the ensemble or the model of a step. `label` tells
    which decoupled step it comes from, 0 for none."""

    def __init__(self, model: str, datatype: DataType, dims: _Dims, *, batching: bool) -> None:
        self.model = model
        self.datatype = datatype
        self.dims = dims
        self.full_dims = (-1, *dims) if batching else dims
        self.label = 0


def check_members(config: ModelConfig, members: Sequence[ModelConfig]) -> bool:
    """Check the members; returns True if the ensemble is decoupled. `members` are the configurations of the models of its steps,
    in the steps' order.

    Raises InvalidArgument for a disagreement.
    """
    steps = _steps(config)
    batching = config.max_batch_size > 0
    nodes: dict[str, _Node] = {}
    own: tuple[ModelInput | ModelOutput, ...] = (*config.input, *config.output)
    for tensor in own:
        dims = tensor.dims if tensor.reshape is None else tensor.reshape.shape
        nodes.setdefault(tensor.name, _Node(config.name, tensor.data_type, dims, batching=batching))
    for step, member in zip(steps, members, strict=True):
        if 0 < member.max_batch_size < config.max_batch_size:
            raise InvalidArgument(
                f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
                f"{step.model_name} which only allows maximum batch size to be {member.max_batch_size}"
            )
        _check_inputs(config.name, step, member, nodes)
        _check_outputs(config.name, step, member, nodes)
    return _follow_decoupled(config, members, nodes)


def _steps(config: ModelConfig) -> tuple[EnsembleStep, ...]:
    return () if config.ensemble_scheduling is None else config.ensemble_scheduling.step


def _check_inputs(ensemble: str, step: EnsembleStep, member: ModelConfig, nodes: dict[str, _Node]) -> None:
    batching = member.max_batch_size > 0
    known = {tensor.name for tensor in member.input}
    for name, tensor in step.input_map.items():
        if name not in known:
            raise InvalidArgument(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input {name} in model "
                f"{step.model_name}"
            )
    for entry in member.input:
        mapped = step.input_map.get(entry.name)
        if mapped is not None:
            _agree(ensemble, mapped, _Node(step.model_name, entry.data_type, entry.dims, batching=batching), nodes)
        elif not entry.optional:
            raise InvalidArgument(
                f"in ensemble {ensemble}, input {entry.name} in model {step.model_name} is not mapped to any ensemble tensors"
            )


def _check_outputs(ensemble: str, step: EnsembleStep, member: ModelConfig, nodes: dict[str, _Node]) -> None:
    batching = member.max_batch_size > 0
    known = {tensor.name for tensor in member.output}
    for name, tensor in step.output_map.items():
        if name not in known:
            raise InvalidArgument(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing output {name} in model "
                f"{step.model_name}"
            )
    for entry in member.output:
        mapped = step.output_map.get(entry.name)
        if mapped is not None:
            _agree(ensemble, mapped, _Node(step.model_name, entry.data_type, entry.dims, batching=batching), nodes)


def _agree(ensemble: str, tensor: str, seen: _Node, nodes: dict[str, _Node]) -> None:
    """A tensor of a step is the ensemble tensor that it is mapped to. Between a model that batches and one that does not, the
    shapes with the batch in front count too."""
    first = nodes.setdefault(tensor, seen)
    about = f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent"
    if first.datatype is not seen.datatype:
        raise InvalidArgument(
            f"{about} data type: {_type(first)} is inferred from model {first.model} while {_type(seen)} is inferred from model "
            f"{seen.model}"
        )
    if not _same(first.dims, seen.dims) and not _same(first.full_dims, seen.full_dims):
        raise InvalidArgument(
            f"{about} shape: {_text(first.full_dims)} is inferred from model {first.model} while {_text(seen.full_dims)} is "
            f"inferred from model {seen.model}"
        )


def _follow_decoupled(config: ModelConfig, members: Sequence[ModelConfig], nodes: dict[str, _Node]) -> bool:
    """Follow the data from the inputs. Each decoupled step begins a separate flow, whose responses have no counterpart in any
    other: a step, and the ensemble's answer, can be made of one flow only."""
    steps = _steps(config)
    readers: dict[str, list[int]] = {}
    missing = []
    for number, step in enumerate(steps):
        sources = set(step.input_map.values())
        missing.append(len(sources))
        for name in sources:
            readers.setdefault(name, []).append(number)
    decoupled_steps = 0
    waiting = deque(tensor.name for tensor in config.input)
    while waiting:
        for number in readers.get(waiting.popleft(), ()):
            missing[number] -= 1
            if missing[number]:
                continue
            written = list(steps[number].output_map.values())
            label = _one_label(config.name, nodes[written[0]].model, [nodes[name] for name in steps[number].input_map.values()])
            if members[number].decoupled:
                decoupled_steps += 1
                label = decoupled_steps
            for name in written:
                nodes[name].label = label
                waiting.append(name)
    _one_label(config.name, config.name, [nodes[tensor.name] for tensor in config.output])
    return decoupled_steps > 0


def _one_label(ensemble: str, reader: str, sources: Sequence[_Node]) -> int:
    """Raises InvalidArgument when the tensors come from different flows."""
    if any(source.label != sources[0].label for source in sources):
        raise InvalidArgument(
            f"in ensemble {ensemble}, step of model '{reader}' receives inputs originated from different decoupled models"
        )
    return sources[0].label if sources else 0


def _type(node: _Node) -> str:
    return node.datatype.config_name


def _same(one: _Dims, other: _Dims) -> bool:
    return len(one) == len(other) and all(-1 in (a, b) or a == b for a, b in zip(one, other, strict=True))


def _text(dims: _Dims) -> str:
    return f"[{','.join(map(str, dims))}]"
