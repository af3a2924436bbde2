"""config.pbtxt: protobuf text format to ModelConfig and back."""

from __future__ import annotations

import msgspec
from google.protobuf import text_format

from tpy import limits
from tpy._proto.pool import POOL
from tpy.config.model_config import ModelConfig
from tpy.config.problem import ConfigError, Problem, Source
from tpy.config.schema import MODEL_CONFIG_CLASS
from tpy.config.syntax import SyntaxWalk
from tpy.config.wire import from_message, to_message


class ParsedConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A configuration as a file has it, before anything is filled in, and where its fields stand."""

    config: ModelConfig
    source: Source


def parse_pbtxt(text: str, *, path: str = "") -> ParsedConfig:
    """Read a configuration in text format. `path` names the file in problems.

    Raises ConfigError with every syntax problem: unknown fields and values (with what may have been meant), wrong types,
    fields given twice, two members of a oneof, brackets and quotes that do not close.
    """
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > limits.CONFIG_BYTES_MAX:
        expected = f"at most {limits.CONFIG_BYTES_MAX} bytes"
        raise ConfigError([Problem(path=path, message=f"the configuration has {size_bytes} bytes", expected=expected)])
    walk = SyntaxWalk(text, path=path)
    walk.run()
    if walk.problems:
        raise ConfigError(walk.problems)
    message = MODEL_CONFIG_CLASS()
    try:
        text_format.Parse(text, message, descriptor_pool=POOL)
    except text_format.ParseError as error:
        place = error.GetLine() or 0, error.GetColumn() or 0
        raise ConfigError([Problem(path=path, line=place[0], column=place[1], message=_bare(str(error)))]) from None
    return ParsedConfig(config=from_message(message), source=walk.source())


def format_pbtxt(config: ModelConfig) -> str:
    """The configuration in text format; `parse_pbtxt` reads it back equal."""
    text: str = text_format.MessageToString(to_message(config), as_utf8=True, descriptor_pool=POOL)
    return text


def _bare(message: str) -> str:
    """protobuf's text without the `line:column : ` in front of it."""
    return message.partition(" : ")[2] or message
