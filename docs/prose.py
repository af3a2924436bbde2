"""The English of the pages: `python docs/prose.py` names each place that proselint finds fault with, by its checks and ours.

Ours are turns of phrase that read as translated, each with what to write in its place. Of proselint's own checks those run
that fit technical pages. Exit status 1: there was something.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from proselint.checks import __register__ as builtin
from proselint.registry import CheckRegistry
from proselint.registry.checks import Check, CheckFlags, types
from proselint.registry.checks.engine import Fast, RegexOptions
from proselint.tools import LintFile

ROOT = Path(__file__).parents[1]

_OWN = r"(?:an?|the) [\w-]+ of (?:its|their|his|your|our) own"
_IS = "(?:is|was|are|were)"
_IS_NO = rf"(?:there )?{_IS} no \w+"
_IS_NO_RIGHTLY = (rf"there {_IS} no \w+", f"{_IS} no (?:faster|larger|less|longer|more|need|problem|slower|such)")
_HAS_NONE = r"(?:there )?(?:is|are|was|were|has|have|had) none"


def _found(pattern: str, rightly: tuple[str, ...] = ()) -> types.Existence:
    """A turn of phrase, on one line or broken over two."""
    return types.Existence((pattern.replace(" ", r"\s+"),), exceptions=tuple(each.replace(" ", r"\s+") for each in rightly))


_OURS = (
    ("own", _found(_OWN), "'{}': write 'its own thread'"),
    ("is_no", _found(_IS_NO, rightly=_IS_NO_RIGHTLY), "'{}': write 'is not a file'"),
    ("none", _found(_HAS_NONE), "'{}': write what is missing: 'there is no file'"),
    ("none_is", _found("none (?:is|are)"), "'{}': write 'no file is'"),
    ("those", _found("those (?:that|which|who|whose)"), "'{}': write the noun: 'models that'"),
    ("many", _found("so many"), "'{}': write what is counted: 'N', 'this many'"),
    ("vain", _found("in vain"), "'{}': write what does not happen"),
    ("only", _found("an only"), "'{}': write 'the only', or 'a sole'"),
)
"""Name, pattern, and what to write."""

_LEFT_OUT = (
    "restricted",  # lists of the words that children know
    "typography",  # quotes, dots and signs as printers set them
    "spelling.consistency",  # of British and American words on one page
    "archaism",  # takes "for every" for "for ever"
    "dates_times.dates.decade_apostrophes",  # takes ResNet-50's for a decade
    "uncomparables",  # takes three times as long as all others, and found nothing
)

_APART = re.compile(r"^```.*?^```$|<!--.*?-->|^#.*?$", re.MULTILINE | re.DOTALL)
"""Code, comments and headings."""
_CODE = re.compile(r"`[^`\n]+`|\d+-\d+-\d+ \d+:\d+")
"""Within a sentence, and times, in whose digits a word may seem to be there twice."""
_ADDRESS = re.compile(r"(?<=\])\([^)\n]*\)")


def checks() -> tuple[Check, ...]:
    """Ours."""
    engine = Fast(RegexOptions(case_insensitive=True))
    flags = CheckFlags(allow_quotes=True)
    return tuple(
        Check(check_type=kind, engine=engine, path=f"tpy.{name}", message=message, flags=flags) for name, kind, message in _OURS
    )


def prose(page: str) -> str:
    """A page of the same length without code, comments, headings and addresses: blanks, or a word for code within a sentence."""
    letters = itertools.cycle("xyz")  # two pieces of code in a row are not a word that is there twice
    page = _APART.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), page)
    page = _CODE.sub(lambda found: next(letters) * len(found[0]), page)
    return _ADDRESS.sub(lambda found: " " * len(found[0]), page)


def faults(page: str) -> Iterator[str]:
    """The faults of a page, as `line: check: words: what to write`."""
    groups = {check.path.partition(".")[0] for check in CheckRegistry().checks} - {*_LEFT_OUT}
    enabled = {**dict.fromkeys(_LEFT_OUT, False), **dict.fromkeys(sorted(groups), True)}  # the first that fits counts
    for found in LintFile("page", prose(page)).lint({"max_errors": sys.maxsize, "checks": enabled}):
        line, _ = found.pos
        yield f"{line}: {found.check_result.check_path}: {found.check_result.message}"


def pages() -> list[Path]:
    """Those in English."""
    named = (ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md"))
    written = (page for page in (ROOT / "docs").rglob("*.md") if "zh" not in page.relative_to(ROOT).parts)
    return [*named, *sorted(written)]


CheckRegistry().register_many((*builtin, *checks()))


def main() -> int:
    """The exit status."""
    found = [f"{page.relative_to(ROOT)}:{fault}" for page in pages() for fault in faults(page.read_text(encoding="utf-8"))]
    print("\n".join(found) if found else "no fault was found", file=sys.stderr if found else sys.stdout)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
