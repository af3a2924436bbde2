"""The bounds of chat templates: time, text, and whoever asked is gone."""

from __future__ import annotations

import pytest

from tpy import limits
from tpy.errors import InvalidArgument
from tpy_platforms.openai.templates import ChatTemplate

LOOP = "{% for x in range(100000) %}"
MACRO = "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(90) }}"
DOUBLED = "{%% set ns = namespace(x='ab') %%}{%% for i in range(100) %%}%s{%% endfor %%}"
TOO_LONG = "a text or list is longer than"
TOO_MANY = "a count or width is larger than"
TOO_LARGE = "a number is too large"


def render(text: str) -> str:
    return ChatTemplate(text=text).render([{"role": "user", "content": "a"}] * 2, None)


@pytest.mark.parametrize(
    "text",
    [
        LOOP + LOOP + "{% endfor %}{% endfor %}",
        LOOP + "{% for y in range(100000) if false %}{% endfor %}{% endfor %}",
        LOOP + LOOP + "{% continue %}{% endfor %}{% endfor %}",
        "{% for x in range(9) recursive %}{{ loop(range(9)) if loop.depth < 90 }}{% endfor %}",
        MACRO,
    ],
)
def test_a_template_without_end_is_ended(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(limits, "OPENAI_TEMPLATE_S_MAX", 0.05)
    with pytest.raises(InvalidArgument, match=r"refuses the messages: it takes longer than 0.05 s"):
        render(text)


@pytest.mark.parametrize("text", [LOOP + LOOP + "{% endfor %}{% endfor %}", MACRO])
def test_a_template_ends_when_nobody_waits(text: str) -> None:
    class Gone(BaseException):
        pass

    def check() -> None:
        raise Gone

    with pytest.raises(Gone):
        ChatTemplate(text=text).render([], None, check)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{ 'x' * 10 ** 9 }}", TOO_LONG),
        ("{{ 10 ** 9 * [1] }}", TOO_LONG),
        ("{{ 10 ** (10 ** 10) }}", TOO_LARGE),
        ("{% set ns = namespace(x=7) %}" + LOOP + "{% set ns.x = ns.x * ns.x %}{% endfor %}", TOO_LARGE),
        (DOUBLED % "{% set ns.x = ns.x ~ ns.x %}", TOO_LONG),
        (DOUBLED % "{% set ns.x = ns.x + ns.x %}", TOO_LONG),
        (DOUBLED % "{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}", TOO_LONG),
        ("{{ [1] | slice(10 ** 9) | list }}", TOO_MANY),
        ("{{ 'a' | center(10 ** 9) }}", TOO_MANY),
        ("{{ 'a' | indent(width=10 ** 9, first=true) }}", TOO_MANY),
        ("{{ 'a'.ljust(10 ** 9) }}", TOO_MANY),
    ],
)
def test_a_step_that_makes_much_is_refused(monkeypatch: pytest.MonkeyPatch, text: str, problem: str) -> None:
    monkeypatch.setattr(limits, "OPENAI_PROMPT_CHARACTERS_MAX", 1_000_000)
    with pytest.raises(InvalidArgument, match=problem):
        render(text)


@pytest.mark.parametrize("text", ["{% include 'other' %}", "{% import 'os' as os %}", "{{ lipsum(n=10 ** 9) }}"])
def test_a_template_has_no_files_and_no_filler(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"no loader|'lipsum' is undefined"):
        render(text)


def test_an_error_of_a_template_is_cut() -> None:
    with pytest.raises(InvalidArgument) as caught:
        render("{{ raise_exception('x' * 1000000) }}")
    assert len(caught.value.message) < 2 * limits.ECHO_CHARACTERS_MAX


def test_what_templates_calculate() -> None:
    text = "{{ 1 + 2 }} {{ 2 ** 10 }} {{ 'ab' * 3 }} {{ [1] + [2] }} {{ 1.5 * 2 }} {{ 'a' ~ 1 ~ none }} {{ '%d' % 3 }}"
    assert render(text) == "3 1024 ababab [1, 2] 3.0 a1None 3"
    assert (
        render("{% for m in messages %}{{ loop.index }}{{ loop.last }}{{ m.content | indent(4) }}{% endfor %}") == "1Falsea2Truea"
    )
