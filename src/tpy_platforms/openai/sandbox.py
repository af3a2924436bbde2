"""The sandbox of chat templates: Jinja's, with bounds on time and text.

A template comes with a tokenizer that somebody downloaded, and what it does depends on what a client sends. It runs in a thread,
which nothing can end from outside. So it looks itself at its processor time and at whether anybody still waits, at each turn of a
loop and at each call; and operations that are one long step in C are refused where they get large.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from tpy import limits

_STEP, _JOIN = "_step", "_join"
"""Filters that templates have without naming them."""
_COUNTING = ("batch", "center", "indent", "round", "slice")
"""Filters of Jinja whose numbers make text or steps."""
_BITS_MAX = 4096
"""Of an integer that is calculated."""
_CHECK_NS = 5_000_000
"""Time between two looks for cancellation."""

_deadline: ContextVar[_Deadline] = ContextVar("_deadline")


@contextmanager
def bounded(check_cancelled: Callable[[], object]) -> Iterator[None]:
    """Bound what templates that are rendered in the block take. In it `check_cancelled` is called again and again."""
    token = _deadline.set(_Deadline(check_cancelled))
    try:
        yield
    finally:
        _deadline.reset(token)


class _Deadline:
    """Of one rendering, by the processor time of its thread."""

    def __init__(self, check_cancelled: Callable[[], object]) -> None:
        now_ns = time.thread_time_ns()
        self._end_ns = now_ns + int(limits.OPENAI_TEMPLATE_S_MAX * 1e9)
        self._check_ns = now_ns
        self._check_cancelled = check_cancelled

    def check(self) -> None:
        """Raise SecurityError when the time is up, and what `check_cancelled` raises."""
        now_ns = time.thread_time_ns()
        if now_ns >= self._end_ns:
            raise SecurityError(f"it takes longer than {limits.OPENAI_TEMPLATE_S_MAX:g} s")
        if now_ns >= self._check_ns:
            self._check_ns = now_ns + _CHECK_NS
            self._check_cancelled()


class _Checks(NodeTransformer):
    """Adds a step to the body of each loop, and replaces `~` by a filter that knows how long a text may get."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802 - Jinja's name
        """A loop."""
        self.generic_visit(node)
        step = nodes.Filter(nodes.Const(None), _STEP, [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(step))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802 - Jinja's name
        """Values with `~` between them."""
        self.generic_visit(node)
        return nodes.Filter(nodes.List(node.nodes), _JOIN, [], [], None, None)


class _Generator(CodeGenerator):
    def visit_Template(self, node: nodes.Template, frame: Frame | None = None) -> None:  # noqa: N802 - Jinja's name
        _Checks().visit(node)
        node.set_environment(self.environment)
        node.set_lineno(1)  # for nodes without a line number
        super().visit_Template(node, frame)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """Templates of it can only be rendered within `bounded`."""

    code_generator_class = _Generator
    intercepted_binops = frozenset(("+", "*", "**"))

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        for name in _COUNTING:
            self.filters[name] = _with_small_numbers(self.filters[name])
        self.filters[_STEP] = _step
        self.filters[_JOIN] = _join
        del self.globals["lipsum"]

    @staticmethod
    def concat(texts: Iterable[str]) -> str:
        """The text of a template, a macro or a block. Raises SecurityError for one that is too long."""
        return _joined(texts)

    def call(self, context: Context, called: Any, /, *arguments: Any, **named: Any) -> Any:
        """Call it. Raises SecurityError for what the sandbox forbids, for large counts, and when the time is up."""
        _deadline.get().check()
        if isinstance(getattr(called, "__self__", None), str):
            _check_counts((*arguments, *named.values()))
        return super().call(context, called, *arguments, **named)

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Calculate. Raises SecurityError for what would become too large."""
        if operator == "+":
            _check_size(_size(left) + _size(right))
        elif isinstance(left, int) and isinstance(right, int):
            bits = left.bit_length() * right if operator == "**" else left.bit_length() + right.bit_length()
            if bits > _BITS_MAX:
                raise SecurityError("a number is too large")
        elif isinstance(left, int) or isinstance(right, int):
            times, many = (left, right) if isinstance(left, int) else (right, left)
            _check_size(times * _size(many))
        return super().call_binop(context, operator, left, right)


@jinja2.pass_context
def _step(_context: Context, _: object) -> None:
    _deadline.get().check()


@jinja2.pass_context  # or else it would be called when the template is compiled
def _join(_context: Context, values: Sequence[object]) -> str:
    return _joined(map(str, values))


def _joined(texts: Iterable[str]) -> str:
    found, size = [], 0
    for text in texts:
        found.append(text)
        size += len(text)
        _check_size(size)
    return "".join(found)


def _size(value: object) -> int:
    """Of what has a length; 0 of numbers."""
    return len(value) if isinstance(value, Sized) else 0


def _check_size(size: int) -> None:
    if size > limits.OPENAI_PROMPT_CHARACTERS_MAX:
        raise SecurityError(f"a text or list is longer than {limits.OPENAI_PROMPT_CHARACTERS_MAX}")


def _check_counts(values: Iterable[object]) -> None:
    if any(isinstance(value, int) and value > limits.OPENAI_TEMPLATE_COUNT_MAX for value in values):
        raise SecurityError(f"a count or width is larger than {limits.OPENAI_TEMPLATE_COUNT_MAX}")


def _with_small_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """The filter, with bounded numbers behind the value."""

    @functools.wraps(function)
    def checked(*arguments: Any, **named: Any) -> Any:
        _check_counts((*arguments[1:], *named.values()))
        return function(*arguments, **named)

    return checked
