"""The check of English finds our marks and proselint's, and looks at nothing but prose."""

from __future__ import annotations

import importlib.util

import pytest

from .pages import ROOT

_SPEC = importlib.util.spec_from_file_location("prose", ROOT / "docs" / "prose.py")
assert _SPEC is not None
assert _SPEC.loader is not None
prose = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(prose)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("It has a thread of its own", "tpy.own: 'a thread of its own': write 'its own thread'"),
        ("What is no file is left", "tpy.is_no: 'is no file': write 'is not a file'"),
        ("There is none.", "tpy.none: 'There is none': write what is missing: 'there is no file'"),
        ("The cache has none.", "tpy.none: 'has none': write what is missing: 'there is no file'"),
        ("None is left.", "tpy.none_is: 'None is': write 'no file is'"),
        ("It is no server.", "tpy.is_no: 'is no server': write 'is not a file'"),
        ("Those\nwho wait leave.", "tpy.those: 'Those\nwho': write the noun: 'models that'"),
        ("After so many of them.", "tpy.many: 'so many': write what is counted: 'N', 'this many'"),
        ("It waits in vain.", "tpy.vain: 'in vain': write what does not happen"),
        ('He said "an only child".', "tpy.only: 'an only': write 'the only', or 'a sole'"),
        (
            "A run that that fails fails.",
            "lexical_illusions: There's a lexical illusion in 'fails fails' - a phrase is repeated.",
        ),
    ],
)
def test_faults_are_found_in_their_line(text: str, fault: str) -> None:
    assert list(prose.faults(f"# Page\n\nFirst.\n{text}\n")) == [f"4: {fault}"]


@pytest.mark.parametrize(
    "text",
    [
        "There is no file, and it is no longer there. Its own thread. A larger one is no larger.",
        "# A thread of its own",
        "`is no file`, `code` `code`",
        "```\nan only\n```",
        "<!-- an only -->",
        "[a page](an only)",
        "2026-11-21 18:05",
    ],
)
def test_what_is_not_a_fault(text: str) -> None:
    assert list(prose.faults(text)) == []


def test_the_english_pages_are_read() -> None:
    names = {str(page.relative_to(ROOT)) for page in prose.pages()}
    assert {"README.md", "CHANGELOG.md", "docs/reference/stability.md", "docs/how-to/ray.md"} < names
    assert not [name for name in names if name.startswith("docs/zh/")]
