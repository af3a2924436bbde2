"""Commands are found by their entry points: ours, those of other packages, and those that cannot be loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tpy.cli.examples import EXAMPLES
from tpy.cli.main import cli

COMMAND = """
import click

@click.command()
@click.argument("name")
def hello(name: str) -> None:
    \"\"\"Greet somebody.\"\"\"
    click.echo(f"hello {name}")
"""


def install(site: Path, entries: str, source: str | None = None, *, name: str = "tpy-other", group: str = "tpy.commands") -> None:
    """Put a package with entry points into a folder of the path."""
    described = site / f"{name.replace('-', '_')}-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(f"[{group}]\n{entries}\n")
    if source is not None:
        (site / f"{name.replace('-', '_')}.py").write_text(source)


def tpy(site: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run the program with that folder in its path."""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, "-m", "tpy", *arguments],
        env={**os.environ, "PYTHONPATH": path, **variables},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_every_command_of_ours_has_an_entry_point() -> None:
    offered = {
        entry.name for entry in entry_points(group="tpy.commands") if entry.dist is not None and entry.dist.name == "tpy-server"
    }
    assert offered == EXAMPLES.keys() - {"serve", "dev"}
    assert cli.commands.keys() >= {"serve", "dev"}


def test_a_command_of_another_package(tmp_path: Path) -> None:
    install(tmp_path, "hello = tpy_other:hello", COMMAND)
    assert tpy(tmp_path, "hello", "Ada").stdout == "hello Ada\n"
    assert "  hello       Greet somebody." in tpy(tmp_path, "--help").stdout
    words = tpy(tmp_path, _TPY_COMPLETE="bash_complete", COMP_WORDS="tpy hel", COMP_CWORD="1")
    assert words.stdout == "plain,hello\n"
    wrong = tpy(tmp_path, "hello", "--loud")
    assert (wrong.returncode, wrong.stderr) == (1, "tpy: error: unrecognized option '--loud'; options: tpy hello --help\n")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        (None, "ModuleNotFoundError: No module named 'tpy_other'"),
        ("hello = 1", "TypeError: expected a click.Command, got int"),
        ("import sys\nsys.exit(3)", "SystemExit: 3"),
        ("raise ValueError('no licence')", "ValueError: no licence"),
    ],
)
def test_a_command_that_cannot_be_loaded_says_so_and_leaves_the_others_alone(
    source: str | None, problem: str, tmp_path: Path
) -> None:
    install(tmp_path, "hello = tpy_other:hello", source)
    said = f"the command 'hello' of tpy-other 1.0 (tpy_other:hello) cannot be loaded: {problem}; repair or remove the package"
    for arguments in (["hello"], ["hello", "--help"]):
        done = tpy(tmp_path, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"tpy: error: {said}\n")
    listed = tpy(tmp_path, "--help")
    assert (listed.returncode, listed.stderr) == (0, "")
    assert "  hello       (cannot be loaded)\n" in listed.stdout
    assert "  perf        " in listed.stdout
    assert "{bash|zsh|fish}" in tpy(tmp_path, "completion", "--help").stdout


def test_two_packages_cannot_offer_one_command(tmp_path: Path) -> None:
    install(tmp_path, "top = tpy_other:hello", COMMAND)
    done = tpy(tmp_path, "top")
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "tpy-other 1.0 (tpy_other:hello)" in line
    assert "both offer the command 'top'; remove one of the packages" in line
    assert tpy(tmp_path, "demo", "--help").returncode == 0


def test_a_package_cannot_take_the_place_of_the_server(tmp_path: Path) -> None:
    """Nor does a server look at the table: the folder is refused by `tpy serve` itself."""
    install(tmp_path, "serve = tpy_other:hello", "raise ValueError('imported')")
    done = tpy(tmp_path, "serve", str(tmp_path / "missing"))
    assert done.returncode == 1
    assert "missing: no such file or folder" in done.stderr


def test_an_installation_that_is_older_than_its_source_says_so(tmp_path: Path) -> None:
    """As an editable one is after an update: the entry points are those of the time when it was made."""
    frontends = entry_points(group="tpy.frontends")
    install(tmp_path, "\n".join(f"{each.name} = {each.value}" for each in frontends), name="tpy-server", group="tpy.frontends")
    done = tpy(tmp_path, "perf")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        "tpy: error: no entry point 'perf' in 'tpy.commands': this installation is older than its source, install it again "
        "(make setup)\n"
    )
    listed = tpy(tmp_path, "--help").stdout
    assert "  serve  Serve the models" in listed
    assert "Missing: analyze, " in listed
    assert "(make setup)." in listed
    assert "No such command 'nosuch'" in tpy(tmp_path, "nosuch").stderr


@pytest.mark.parametrize("arguments", [["serve", "missing"], ["gone"]])
def test_an_entry_point_of_ours_that_has_moved_says_so(arguments: list[str], tmp_path: Path) -> None:
    frontends = [f"{each.name} = {each.value}" for each in entry_points(group="tpy.frontends")]
    if arguments == ["gone"]:
        entries = "\n".join([*frontends, "[tpy.commands]", "gone = tpy.cli.gone:gone"])
    else:
        entries = "\n".join([*frontends, "gone = tpy.frontends.gone:FRONTEND"])
    install(tmp_path, entries, name="tpy-server", group="tpy.frontends")
    done = tpy(tmp_path, *arguments)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "'gone' of tpy-server 1.0 (tpy." in line
    assert line.endswith("; this installation is older than its source, install it again (make setup)")
