"""Chat templates: Jinja, as tokenizers bring them. Rendered in a sandbox, with what templates of Transformers expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence, Set
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NoReturn

import jinja2
import jinja2.meta
import msgspec
from jinja2 import nodes
from jinja2.ext import loopcontrols

from tpy import limits
from tpy.echo import echo
from tpy.errors import InvalidArgument, TpyError, Unsupported
from tpy.files import read_file
from tpy.frontends.http.codec.long_json import write_long
from tpy.gguf import TEMPLATE, read_header, special_tokens
from tpy_platforms.openai.sandbox import BoundedEnvironment, bounded

_REFUSALS = (jinja2.TemplateError, TypeError, ValueError, AttributeError, ArithmeticError, LookupError, RuntimeError, MemoryError)
"""The exceptions of a template that runs; RuntimeError is of recursion without an end."""

_SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate(msgspec.Struct, frozen=True, kw_only=True):
    """A template and the tokens that it may name."""

    text: str
    tokens: Mapping[str, str] = {}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        check_cancelled: Callable[[], object] = lambda: None,
        more: Mapping[str, Any] | None = None,
        *,
        advice: str = "",
    ) -> str:
        """The prompt that asks for the next message of the assistant; `more` are further variables of the template, `advice` ends
        the text of a refusal.
        `check_cancelled` is called all the time, and may raise. Raises InvalidArgument for messages that the template refuses, or
        takes too long for, and Unsupported for an invalid template."""
        try:
            template = _compiled(self.text)
        except jinja2.TemplateSyntaxError as error:
            raise Unsupported(f"the chat template is not Jinja: {error.message} (line {error.lineno})") from None
        try:
            with bounded(check_cancelled):
                given = {"documents": None, "add_generation_prompt": True, **self.tokens, **(more or {})}
                return template.render({**given, "messages": messages, "tools": tools})
        except _REFUSALS as error:
            raise InvalidArgument(f"the chat template refuses the messages: {echo(str(error))}{advice}") from None

    def takes_tools(self) -> bool:
        """Returns True if the template does something with tools."""
        try:
            return "tools" in jinja2.meta.find_undeclared_variables(_environment().parse(self.text))
        except jinja2.TemplateSyntaxError:  # its rendering says so
            return True

    def takes_parts(self) -> bool:
        """Returns True if the template goes through the parts of a message's content, which then may not be a text."""
        return _goes_through_contents(self.text)


def read_template(path: str, *, flag: str) -> str:
    """The template in a file, the value of `flag`. Raises InvalidArgument."""
    try:
        text = read_file(Path(path), bytes_max=limits.OPENAI_TOKENIZER_BYTES_MAX).decode()
        _compiled(text)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"--{flag}: cannot read the chat template {path}: {error}") from None
    except jinja2.TemplateSyntaxError as error:
        raise InvalidArgument(f"--{flag}: {path}:{error.lineno}: {error.message}") from None
    return text


_CONFIGURATION, _APART, _GGUF = "tokenizer_config.json", "chat_template.jinja", ".gguf"


def read_tokenizer(path: str, *, source: str) -> ChatTemplate:
    """The template of a tokenizer: a folder with tokenizer_config.json, in newer ones with chat_template.jinja, or that file; or
    a GGUF file, or a folder with one. Raises InvalidArgument that begins with `source`."""
    file = _file_of(Path(path))
    try:
        if file.suffix == _GGUF:
            return _in_gguf(file, source)
        document = json.loads(read_file(file, bytes_max=limits.OPENAI_TOKENIZER_BYTES_MAX))
        apart = file.parent / _APART
        text: object
        if apart.exists():
            text = read_file(apart, bytes_max=limits.OPENAI_TOKENIZER_BYTES_MAX).decode()
        else:
            text = document.get("chat_template")
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidArgument(f"{source}: cannot read the tokenizer {file}: {error}") from None
    if isinstance(text, list):  # several by name
        named = {each.get("name"): each.get("template") for each in text if isinstance(each, dict)}
        text = named.get("default")
    if not isinstance(text, str):
        raise InvalidArgument(f"{source}: the tokenizer {file} has no chat_template")
    tokens = {}
    for name in _SPECIAL_TOKENS:
        value = document.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            tokens[name] = value
    return ChatTemplate(text=text, tokens=tokens)


def _file_of(path: Path) -> Path:
    """The file of a tokenizer; in a folder its configuration, or else the only GGUF file."""
    if not path.is_dir():
        return path
    if not (path / _CONFIGURATION).exists():
        try:
            found = [file for file in path.iterdir() if file.suffix == _GGUF]
        except OSError:  # the reading of what is not there says so
            found = []
        if len(found) == 1:
            return found[0]
    return path / _CONFIGURATION


def _in_gguf(file: Path, source: str) -> ChatTemplate:
    entries = read_header(file).entries
    text = entries.get(TEMPLATE)
    if not text or not isinstance(text, str):
        raise InvalidArgument(f"{source}: the model {file} has no {TEMPLATE}")
    return ChatTemplate(text=text, tokens=special_tokens(entries))


def template_of(model: str, parameter: Mapping[str, str], fallback: ChatTemplate | None) -> ChatTemplate:
    """The template of a model by its parameters `chat_template` (Jinja) or `tokenizer` (a path), else `fallback`. Raises
    Unsupported when it has no template."""
    if parameter.get("chat_template"):
        return ChatTemplate(
            text=parameter["chat_template"], tokens={name: parameter[name] for name in _SPECIAL_TOKENS if name in parameter}
        )
    if parameter.get("tokenizer"):
        found = _tokenizer_at(model, parameter["tokenizer"], _changed_ns(parameter["tokenizer"]))
        if isinstance(found, str):  # not the fault of whoever asks
            raise Unsupported(found)
        return found
    if fallback is None:
        raise Unsupported(
            f"model '{model}' has no chat template: give it the parameter 'chat_template' or 'tokenizer', or start the server "
            "with --openai-tokenizer or --openai-chat-template"
        )
    return fallback


@lru_cache(limits.OPENAI_TEMPLATES_MAX)
def _tokenizer_at(model: str, path: str, _changed_ns: int) -> ChatTemplate | str:
    """The tokenizer, or the reason why it cannot be used. Read again only when it has changed: otherwise a large broken file
    would be parsed for each chat."""
    try:
        return read_tokenizer(path, source=f"model '{model}'")
    except TpyError as error:
        return error.message


def _changed_ns(path: str) -> int:
    """The time of the last change of a tokenizer's file, or folder, or of who may read it; 0 if it does not exist."""
    file = _file_of(Path(path))
    files = (file, file.with_name(_APART))
    return max(
        (max(found.st_mtime_ns, found.st_ctime_ns) for found in (file.stat() for file in files if file.is_file())), default=0
    )


@lru_cache(limits.OPENAI_TEMPLATES_MAX)
def _compiled(text: str) -> jinja2.Template:
    return _environment().from_string(text)


@lru_cache(limits.OPENAI_TEMPLATES_MAX)
def _goes_through_contents(text: str) -> bool:
    """Returns True for a loop over the content of something, or over a variable or a macro's parameter that gets one. vLLM tells
    templates apart in this way."""
    try:
        tree = _environment().parse(text)
    except jinja2.TemplateSyntaxError:  # its rendering says so
        return False
    names = {"content"}
    for assignment in tree.find_all(nodes.Assign):
        if isinstance(assignment.target, nodes.Name) and _is_content(assignment.node, names):
            names.add(assignment.target.name)
    macros = {macro.name: [argument.name for argument in macro.args] for macro in tree.find_all(nodes.Macro)}
    for call in tree.find_all(nodes.Call):
        parameters = macros.get(call.node.name, []) if isinstance(call.node, nodes.Name) else []
        given = [*zip(parameters, call.args, strict=False), *((each.key, each.value) for each in call.kwargs)]
        names.update(name for name, value in given if name in parameters and _is_content(value, names))
    return any(_is_content(loop.iter, names) for loop in tree.find_all(nodes.For))


def _is_content(node: nodes.Node | None, names: Set[str]) -> bool:
    """Returns True for the content of something, or some of its parts."""
    while isinstance(node, nodes.Filter) or (isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)):
        node = node.node
    if isinstance(node, nodes.Getitem):
        return isinstance(node.arg, nodes.Const) and node.arg.value == "content"
    return (isinstance(node, nodes.Getattr) and node.attr == "content") or (isinstance(node, nodes.Name) and node.name in names)


def _environment() -> jinja2.Environment:
    environment = BoundedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(value: object, indent: int | None = None, **_: object) -> str:
    """Without the escapes for HTML that Jinja's own filter makes."""
    return write_long(value, ascii_only=False, indent=indent)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
