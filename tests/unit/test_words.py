"""Words: docstrings say what a thing is or does, and the glossary lists words that the code uses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = (".", "src", "control", "data")
QUESTIONS = frozenset({"what", "whether", "how", "where", "who", "when", "which", "why"})
GENERATED = ("src/tpy/_proto",)
"""Folders of generated code."""

RETIRED = frozenset({"desk", "door", "glance", "hear", "heard", "plant", "said", "say", "sight", "steady", "talk", "told"})
"""Words that the code has replaced by the field's: no module, class or function of the server is named so."""


def sources() -> list[Path]:
    folders = ("src", "control", "data", "tests", "fuzz", "benchmarks", "proto", "docs")
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return [file for file in files if not str(file.relative_to(ROOT)).startswith(GENERATED)]


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """A tree and its statements, without their expressions, which are most of it and define nothing."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [
            each for each in ast.iter_child_nodes(node) if isinstance(each, ast.stmt | ast.ExceptHandler | ast.match_case)
        ]


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring, also of those below attributes and constants."""
    for node in statements(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                match statement:
                    case ast.Expr(value=ast.Constant(value=str(text))):
                        yield statement.lineno, text


def questions(source: str) -> list[str]:
    """The docstrings that begin with a question word, as `line: first line`."""
    found = []
    for line, text in docstrings(ast.parse(source)):
        first = re.match(r"\w+", text.strip())
        if first and first[0].lower() in QUESTIONS:
            found.append(f"{line}: {text.strip().splitlines()[0]}")
    return found


def test_docstrings_say_what_a_thing_is_or_does() -> None:
    found = {str(file.relative_to(ROOT)): questions(file.read_text(encoding="utf-8")) for file in sources()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize("source", ['"""What it is."""', 'X = 1\n"""How many."""', 'def f():\n    """Whether."""'])
def test_the_check_of_docstrings_can_fail(source: str) -> None:
    assert questions(source)


def names(file: Path) -> set[str]:
    """The words in the names of a module, its classes and its functions."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    defined = [node.name for node in statements(tree) if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)]
    return set(re.findall(r"[a-z]+", re.sub(r"([A-Z])", r"_\1", " ".join([file.stem, *defined])).lower()))


def test_retired_words_name_nothing() -> None:
    server = [file for file in sources() if file.relative_to(ROOT).parts[0] in ("src", "control", "data")]
    found = {str(file.relative_to(ROOT)): names(file) & RETIRED for file in server}
    assert {name: words for name, words in found.items() if words} == {}


TRANSLATED = {
    r" of (?:its|their|his|your|our) own(?= (?:and|are|as|for|from|in|is|or|that|to|which|who|with)\b| ?[^ \w]|$)": "'its own X'",
    r" (?<!here )(?:is|was|are|were) no (?!(?:faster|larger|less|longer|more|need|problem|slower|such)\b)\w+": "'is not an X'",
    r" (?:is|was|are|were|has|have|had) none\b": "what is missing: 'without X'",
    r" none is\b": "'no X is'",
    r"n only\b(?<=\b[Aa]n only)": "'a sole X', or 'the only X'",
    r"hose (?:that|which|who|whose)\b": "the noun: 'models that'",
    r"o many\b(?<=\b[Ss]o many)": "what is counted: 'N', 'this many'",
    r" in vain\b": "what does not happen",
}
"""Turns of phrase that read as translated, and what to write instead. Each begins with a letter or a space, to be quick."""


def translations(source: str) -> list[str]:
    """The turns of phrase in docstrings, comments and texts, as `words: write ...`."""
    text = " ".join(source.split())
    return [
        f"{text[max(0, found.start() - 20) : found.end() + 20]}: write {instead}"
        for mark, instead in TRANSLATED.items()
        for found in re.finditer(mark, text)
    ]


def test_sources_read_as_if_they_were_written_in_english() -> None:
    files = {str(file.relative_to(ROOT)): file for file in sources() if file.relative_to(ROOT).parts[0] != "tests"}
    del files["docs/prose.py"]  # names them
    found = {name: translations(file.read_text(encoding="utf-8")) for name, file in files.items()}
    assert {name: lines for name, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source", ["# It is no file.", '"""None: those that\n    wait."""', "X = 1  # a thread of its own\n", "f'{x} has none'"]
)
def test_turns_of_phrase_are_found(source: str) -> None:
    assert len(translations(source)) == 1
    assert translations("# There is no file, and it is no longer there. One of its own files. X if x is None") == []


def glossary() -> list[tuple[str, str]]:
    """Word and module of each row."""
    page = (ROOT / "docs/explanation/glossary.md").read_text(encoding="utf-8")
    return re.findall(r"^\| ([a-z ]+) \| [^|]+ \| `([\w.]+)` \|$", page, re.MULTILINE)


def module_text(module: str) -> str:
    """The source of a module, or of the modules directly in a package."""
    path = module.replace(".", "/")
    found = [file for folder in FOLDERS for pattern in (f"{path}.py", f"{path}/*.py") for file in (ROOT / folder).glob(pattern)]
    return "\n".join(file.read_text(encoding="utf-8") for file in found)


def test_the_map_of_packages_is_complete() -> None:
    """Every package of the server is in the table of the architecture page, or a part of one that is."""
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(tpy[\w.]*)` \|", page, re.MULTILINE)
    folders = {
        "tpy": "src",
        "tpy_backends": "data",
        "tpy_cloud": "control",
        "tpy_control": "control",
        "tpy_data": "data",
        "tpy_native": "data",
        "tpy_page": "src",
        "tpy_platforms": "src",
        "tpy_tools": "src",
    }
    packages = {
        ".".join(found.parent.relative_to(ROOT / folder).parts)
        for root, folder in folders.items()
        for found in (ROOT / folder / root).rglob("__init__.py")
    }
    parts = {package for package in packages if any(package.startswith(f"{each}.") for each in listed)}
    around = {package for package in packages if any(each.startswith(f"{package}.") for each in listed)}
    missing = packages - parts - around - set(listed)
    assert {package for package in missing if not package.startswith("tpy._proto")} == set(), (
        "generated code is no part of the map"
    )
    assert [each for each in listed if not module_text(each)] == []


def test_the_glossary_has_words() -> None:
    words = [word for word, _ in glossary()]
    rows = (ROOT / "docs/explanation/glossary.md").read_text(encoding="utf-8").count("\n| ")
    assert len(words) == len(set(words)) == rows - 4, "every row is read: four tables have a head each"


@pytest.mark.parametrize(("word", "module"), glossary())
def test_every_word_of_the_glossary_is_used(word: str, module: str) -> None:
    assert word in module_text(module).lower()
