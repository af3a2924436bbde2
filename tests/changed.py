"""`python -m tests.changed [BASE]`: run the tests of what differs from a commit, files that are not committed included, or with
`--package` those of a package."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.mutation.suites import AREAS, suites_of

_ROOT = Path(__file__).parents[1]
_ALL = ("tests",)
_NO_TESTS_COLLECTED = 5
_SOURCES = ("src", "control", "data")

_USERS: dict[str, tuple[str, ...]] = {
    "torch": ("tests/backends/pytorch", "tests/e2e/test_pytorch.py", "tests/e2e/test_init_pytorch.py", "tests/docs/test_how_to"),
    "bench": ("tests/benchmarks",),
    **{name: (f"tests/e2e/test_example_{name}.py",) for name in ("embeddings", "faces", "ocr", "speech", "words")},
}
"""By packages that the Makefile installs for `make test`, the tests that use them."""


def suites_of_change(path: str) -> tuple[str, ...]:
    """The paths to give to pytest when this file changed: of a test itself, of what tests share their folder."""
    if path.startswith("tests/"):
        if Path(path).name.startswith("test_"):
            return (path,)
        folder = str(Path(path).parent)
        return (folder,)
    area = next((suites for prefix, suites in AREAS.items() if path.startswith(prefix)), None)
    if area is None:
        return _ALL if path.endswith((".py", ".toml", ".txt")) or path == "Makefile" else ()
    return (*(suite for suite in suites_of(Path(path)) if not suite.startswith("fuzz:")), *area)


def suites_of_changes(paths: Iterable[str]) -> list[str]:
    """Each folder or file once, none that lies in another."""
    wanted = {suite for path in paths for suite in suites_of_change(path)}
    return sorted(suite for suite in wanted if not any(str(parent) in wanted for parent in Path(suite).parents))


def files_of_package(name: str, root: Path = _ROOT) -> list[str]:
    """The modules of a package, by its name: `tpy_tools.load`, or `tools.load` for short. Raises ValueError, with the packages
    beside it, where it is missing."""
    for full in (name, f"tpy_{name}"):
        path = full.replace(".", "/")
        for source in _SOURCES:
            if (root / source / path / "__init__.py").exists():
                return [str(file.relative_to(root)) for file in sorted((root / source / path).rglob("*.py"))]
    path = name.replace(".", "/")
    beside = {each.parent for source in _SOURCES for each in (root / source / path).parent.glob("*/__init__.py")}
    there = (
        ", ".join(sorted(each.name for each in beside))
        or "tpy, tpy_backends, tpy_cloud, tpy_control, tpy_data, tpy_native, tpy_page, tpy_platforms, tpy_tools"
    )
    raise ValueError(f"no package is called {name!r}; expected a name like tpy_tools.load; at this place there are: {there}")


def changed_files(base: str) -> list[str]:
    """The files that differ from the commit at which this branch left `base`, and what git does not know yet."""
    begin = _git("merge-base", base, "HEAD")[0]
    return [*_git("diff", "--name-only", begin), *_git("ls-files", "--others", "--exclude-standard")]


def packages_of(suites: Iterable[str]) -> list[str]:
    """The further packages that tests of these suites use, as the Makefile names them: all for all tests, and none for a folder
    that has others beside, which are skipped."""
    wanted = tuple(suites)
    if wanted == _ALL:
        return list(_USERS)
    return [name for name, users in _USERS.items() if any(suite.startswith(users) for suite in wanted)]


def _install(packages: Sequence[str]) -> None:
    """Install what is not there. Without a network, say what is skipped."""
    missing = [name for name in packages if not (_ROOT / f".venv/.tpy-{name}-setup").exists()]
    if not missing:
        return
    stamps = [f".venv/.tpy-{name}-setup" for name in missing]
    subprocess.run(["make", "-k", *stamps], cwd=_ROOT, check=False)
    left = [name for name in missing if not (_ROOT / f".venv/.tpy-{name}-setup").exists()]
    if left:
        print(f"not installed: {', '.join(left)}; the tests that need it are skipped", flush=True)


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], cwd=_ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


def main() -> int:
    """Run them on all cores; the exit status is pytest's, 0 when there is nothing to run."""
    parser = argparse.ArgumentParser(prog="python -m tests.changed", description=__doc__)
    parser.add_argument("base", nargs="?", default="main", metavar="BASE", help="compare with this commit (default: main)")
    parser.add_argument(
        "--package", metavar="NAME", help="the tests of this package instead, for example tpy_tools.load or tools"
    )
    parser.add_argument("--list", action="store_true", help="print what would be run")
    arguments = parser.parse_args()
    try:
        files = changed_files(arguments.base) if arguments.package is None else files_of_package(arguments.package)
    except ValueError as error:
        parser.error(str(error))
    suites = [suite for suite in suites_of_changes(files) if (_ROOT / suite).exists()]
    print("\n".join(suites) or "nothing that has tests differs", flush=True)
    if arguments.list or not suites:
        return 0
    _install(packages_of(suites))
    command = [sys.executable, "-m", "pytest", f"--workers={os.cpu_count()}", "-rs", *suites]
    code = subprocess.run(command, cwd=_ROOT, check=False).returncode
    return 0 if code == _NO_TESTS_COLLECTED else code


if __name__ == "__main__":
    sys.exit(main())
