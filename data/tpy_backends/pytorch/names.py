"""Matches the tensors of a configuration with the arguments and results of the model.

Triton's rules. Inputs: their names are the model's argument names; or else all end in `__<position>`; or else they are taken in
the order of the configuration. Outputs: all names end in `__<position>`, or else order. What the model knows by other names is
found by those too: the keys of a dict, and `ARGS[0]`, `KWARGS[mask]` and `RESULT[0]`, as Triton has them for packages.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tpy.backend import state_specs
from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy_backends.pytorch.signature import ModuleOutput, ModuleSignature
from tpy_backends.validation import left_out_text

Warn = Callable[[str], None]


def input_positions(config: ModelConfig, signature: ModuleSignature, warn: Warn = lambda text: None) -> dict[str, int]:
    """The position of every input that the model is fed: those of the configuration, control tensors, states and batch inputs.

    Raises InvalidArgument for a name that cannot be placed, a position that the model does not have, and one that is taken twice.
    """
    given = [entry.name for entry in config.input]
    made = _made_inputs(config)
    if signature.takes_dict:
        return {name: position for position, name in enumerate((*given, *made))}
    arguments = [argument.name for argument in signature.inputs]
    known = {argument.path: position for position, argument in enumerate(signature.inputs) if argument.path}
    known.update({name: position for position, name in enumerate(arguments)})
    positions = _by_name(given, known) or _by_index(given)
    if positions is None:
        positions = {name: position for position, name in enumerate(given)}
        if any("__" in name for name in given) or not _is_pair(given, arguments):
            warn(_fallback(config, "input", given, "are neither an input argument to the model nor do they"))
    for position, name in enumerate(made, start=len(given)):
        place = known.get(name, _index(name))
        if place is None and name in _batch_targets(config):
            place = position
        if place is None:
            raise InvalidArgument(
                f"input '{name}' does not follow <name>__<index> naming convention, and is not an argument of {signature.text()}"
            )
        positions[name] = place
    _require_distinct(config, "input", positions, len(arguments), signature)
    return positions


def output_positions(config: ModelConfig, signature: ModuleSignature, warn: Warn = lambda text: None) -> dict[str, int | str]:
    """The position, or the key in a dict, of every output that is read: those of the configuration, and states. As above."""
    given = [entry.name for entry in config.output]
    states = [spec.output_name for spec in state_specs(config)]
    if signature.gives_dict:
        keys = [result.key for result in signature.outputs or ()]
        if given and (missing := [key for key in keys if key and key not in (*given, *states)]):
            warn(left_out_text(config, ", ".join(missing)))
        return {name: name for name in (*given, *states)}
    results = signature.outputs or ()
    known = {result.path: position for position, result in enumerate(results) if result.path}
    known.update({result.key: position for position, result in enumerate(results) if result.key})
    positions = _by_name(given, known) or _by_index(given)
    if positions is None:
        positions = {name: position for position, name in enumerate(given)}
        if any("__" in name for name in given):
            warn(_fallback(config, "output", given, "do not"))
    for name in states:
        place = known.get(name, _index(name))
        if place is None:
            raise InvalidArgument(
                f"PyTorch model '{config.name}' is using sequence batching with state but state '{name}' does not follow the "
                "<name>__<index> naming convention. "
            )
        positions[name] = place
    if signature.outputs is not None:
        for name, position in positions.items():
            if position >= len(signature.outputs):
                raise InvalidArgument(no_such_output(name, len(signature.outputs)))
        if given and (left_out := _left_out(signature.outputs, positions)):
            warn(left_out_text(config, ", ".join(left_out)))
    return dict(positions)


def _left_out(results: Sequence[ModuleOutput], positions: Mapping[str, int]) -> list[str]:
    """The names by which a configuration could list the results that it does not."""
    taken = set(positions.values())
    return [each.key or each.path or f"OUTPUT__{place}" for place, each in enumerate(results) if place not in taken]


def no_such_output(name: str, count: int) -> str:
    """Triton's text for an output that the model does not have."""
    return (
        f"The output {name} in the model configuration refers to an output index which doesn't exist. "
        f"This model has {count} outputs"
    )


def _made_inputs(config: ModelConfig) -> list[str]:
    """Names of inputs that the server makes: control tensors, states, and batch inputs in the order of the configuration."""
    controls = config.sequence_batching.control_input if config.sequence_batching is not None else ()
    return [
        *(entry.name for entry in controls),
        *(spec.input_name for spec in state_specs(config)),
        *_batch_targets(config),
    ]


def _batch_targets(config: ModelConfig) -> list[str]:
    return [name for made in config.batch_input for name in made.target_name]


def _by_name(names: Sequence[str], known: Mapping[str, int]) -> dict[str, int] | None:
    return {name: known[name] for name in names} if all(name in known for name in names) else None


def _by_index(names: Sequence[str]) -> dict[str, int] | None:
    positions = {name: _index(name) for name in names}
    found = {name: position for name, position in positions.items() if position is not None}
    return found if len(found) == len(positions) else None


def _index(name: str) -> int | None:
    """The number behind the first `__`; None when something else is there."""
    _, mark, digits = name.partition("__")
    return int(digits) if mark and digits.isascii() and digits.isdigit() else None


def _is_pair(names: Sequence[str], arguments: Collection[str]) -> bool:
    """True for one name and one argument: then there is nothing to mistake."""
    return len(names) == len(arguments) == 1


def _fallback(config: ModelConfig, word: str, names: Sequence[str], why: str) -> str:
    return (
        f"{word} '{names[0] if names else ''}' or another {word} of the model '{config.name}' {why} follow the "
        "<name>__<index> naming convention. Falling back to enforcing strict ordering from model configuration."
    )


def _require_distinct(
    config: ModelConfig, word: str, positions: Mapping[str, int], count: int, signature: ModuleSignature
) -> None:
    taken: dict[int, str] = {}
    for name, position in positions.items():
        if position >= count:
            raise InvalidArgument(
                f"unable to load model '{config.name}', {word} '{name}' refers to position {position}, model provides {count} "
                f"{word}s: {signature.text()}"
            )
        if position in taken:
            raise InvalidArgument(
                f"unable to load model '{config.name}', {word}s '{taken[position]}' and '{name}' are both for position "
                f"{position} of {signature.text()}"
            )
        taken[position] = name
