"""The targets of config.pbtxt."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from google.protobuf import text_format

from fuzz.chance import Chance
from fuzz.config.documents import random_message, random_text, spoiled
from fuzz.target import Target, Violation
from tpy._proto.pool import POOL
from tpy.config import (
    ConfigError,
    ParsedConfig,
    format_pbtxt,
    from_message,
    normalise,
    parse_json,
    parse_pbtxt,
    resolve,
    to_json,
    to_message,
    validate,
)
from tpy.config.schema import MODEL_CONFIG_CLASS

_CPU_SECONDS_MAX = 2.0
"""For a text of a few KiB. It takes a few milliseconds; this is for what grows with the square of the text."""

Parse = Callable[[str], ParsedConfig]


def run_documents(chance: Chance, parse: Parse = parse_pbtxt) -> int:
    """Sound documents: protobuf and we must read the same."""
    message = random_message(chance)
    text = random_text(chance, message)
    parsed = _sound(parse, text)
    known = MODEL_CONFIG_CLASS()
    text_format.Parse(text, known, descriptor_pool=POOL)
    if to_message(parsed.config) != known or known != message:
        raise Violation(f"read as {parsed.config}\n{text}")
    if parsed.config != from_message(message):
        raise Violation(f"the message reads otherwise than its text\n{text}")
    again = format_pbtxt(parsed.config)
    if _sound(parse, again).config != parsed.config:
        raise Violation(f"does not read back what it wrote\n{again}")
    as_json = to_json(parsed.config)
    if parse_json(json.dumps(as_json)) != parsed.config:
        raise Violation(f"does not read back its JSON\n{as_json!r}")
    _check_way(parsed)
    return 5


def _sound(parse: Parse, text: str) -> ParsedConfig:
    try:
        return parse(text)
    except ConfigError as error:
        raise Violation(f"refused: {error.message}\n{text}") from error


def run_spoiled(chance: Chance) -> int:
    """Documents with mistakes."""
    text = random_text(chance, random_message(chance))
    return sum(_read(spoiled(chance, text)) for _ in chance.rounds((2, 4)))


def attack(data: bytes) -> int:
    """Any bytes, as a file of them is read."""
    return _read(data.decode("utf-8", "replace"))


def _read(text: str) -> int:
    began = time.process_time()
    try:
        parsed = parse_pbtxt(text, path="config.pbtxt")
    except ConfigError as error:
        _check_problems(text, error)
    else:
        known = MODEL_CONFIG_CLASS()
        text_format.Parse(text, known, descriptor_pool=POOL)
        if from_message(known) != parsed.config:
            raise Violation(f"read as {parsed.config}\n{text}")
        _check_way(parsed)
    if (took := time.process_time() - began) > _CPU_SECONDS_MAX:
        raise Violation(f"{took:.1f} s for {len(text)} characters\n{text}")
    return 1


def _check_problems(text: str, error: ConfigError) -> None:
    if not error.problems or not error.message:
        raise Violation(f"refused without a problem\n{text}")
    lines = text.split("\n")
    for problem in error.problems:
        if not problem.message or problem.path != "config.pbtxt" or "\n" in str(problem):
            raise Violation(f"a problem without words, or of no file: {problem!r}\n{text}")
        if not 1 <= problem.line <= len(lines) or not 1 <= problem.column <= len(lines[problem.line - 1]) + 1:
            raise Violation(f"a problem at no place of the text: {problem!r}\n{text}")


def _check_way(parsed: ParsedConfig) -> None:
    """Whatever a document says, the rest of the way knows only problems."""
    try:
        config = resolve(parsed.config, directory_name="m", version_files=(), source=parsed.source)
    except ConfigError:
        return
    config = normalise(config)
    if normalise(config) != config:
        raise Violation(f"normalising twice is not normalising once: {config}")
    for complete in (False, True):
        for problem in validate(config, source=parsed.source, complete=complete):
            if not problem.message or "\n" in str(problem):
                raise Violation(f"a problem without words: {problem!r}")


def _parse_carelessly(text: str) -> ParsedConfig:
    """Wrong on purpose: remarks are cut off even within quotes."""
    return parse_pbtxt("\n".join(line.partition("ä")[0] for line in text.split("\n")))


def _canary(chance: Chance) -> int:
    return run_documents(chance, _parse_carelessly)


DOCUMENTS = Target(
    name="config_documents",
    invariant="what protobuf writes in any style is read as protobuf reads it, and reads back from our text and our JSON",
    run=run_documents,
    smoke_examples=3000,
)
SPOILED = Target(
    name="config_spoiled",
    invariant=(
        "a text is read exactly as protobuf reads it, or refused with problems that each have words and a place in the text; what"
        " was read can be resolved, normalised and checked; never another exception, and never for long"
    ),
    run=run_spoiled,
    smoke_examples=800,
    attack=attack,
)
CANARY = Target(
    name="config_canary",
    invariant="a reader that cuts texts off is found out",
    run=_canary,
    smoke_examples=200,
    must_fail=True,
)
