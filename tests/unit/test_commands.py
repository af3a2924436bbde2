"""Commands name one thing one way, complete in shells, and have manual pages."""

from __future__ import annotations

import subprocess
from pathlib import Path

import click
import pytest

from tpy.cli import main
from tpy.cli.main import cli
from tpy.cli.man import pages
from tpy_tools.commands.server_address import port_of_server, url_of_server

ASK_A_SERVER = ("infer", "perf", "top", "explain", "record", "replay", "analyze", "demo")
WITH_TABLES = ("infer", "perf", "top", "explain", "record", "replay", "analyze", "check", "doctor")


def spellings(command: str) -> dict[str, set[str]]:
    """The spellings of each option that the help shows, by the last."""
    found = [each for each in cli.all_commands()[command].params if isinstance(each, click.Option) and not each.hidden]
    return {option.opts[-1]: set(option.opts) for option in found}


@pytest.mark.parametrize("command", ASK_A_SERVER)
def test_a_server_is_named_in_the_same_way(command: str) -> None:
    found = spellings(command)
    assert found["--url"] == {"-u", "--url"}
    assert found.get("--protocol", {"-i", "--protocol"}) == {"-i", "--protocol"}
    assert found.get("--header", {"-H", "--header"}) == {"-H", "--header"}
    assert not {"--host", "--port"} & found.keys()
    assert "--header" in found or command == "analyze"


@pytest.mark.parametrize("command", WITH_TABLES)
def test_what_is_printed_can_be_json(command: str) -> None:
    assert "--json" in spellings(command)


@pytest.mark.parametrize(
    ("environment", "url", "grpc"),
    [
        ({}, "http://127.0.0.1:8000", 8001),
        ({"TPY_HTTP_PORT": "9000", "TPY_GRPC_PORT": "9001"}, "http://127.0.0.1:9000", 9001),
        ({"TPY_HTTP_ADDRESS": "0.0.0.0", "TPY_HTTP_PORT": "0"}, "http://127.0.0.1:8000", 8001),
        ({"TPY_HTTP_ADDRESS": "::1", "TPY_HTTP_PORT": "99999"}, "http://[::1]:8000", 8001),
        ({"TPY_HTTP_ADDRESS": "unix:/run/tpy", "TPY_GRPC_PORT": "x"}, "http://127.0.0.1:8000", 8001),
    ],
)
def test_the_server_is_where_the_environment_says(environment: dict[str, str], url: str, grpc: int) -> None:
    """The variables are those that `tpy serve` and `tpy dev` read."""
    assert url_of_server(environment) == url
    assert port_of_server("grpc", environment) == grpc


@pytest.mark.parametrize(
    ("shell", "word", "place"),
    [
        ("bash", "_tpy_completion", "data/bash-completion/completions/tpy"),
        ("zsh", "#compdef tpy", "data/zsh/site-functions/_tpy"),
        ("fish", "function _tpy_completion", "config/fish/completions/tpy.fish"),
    ],
)
def test_completion(
    shell: str, word: str, place: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    texts = []
    for arguments in ([], ["--install"]):
        monkeypatch.setattr("sys.argv", ["tpy", "completion", shell, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 0
        texts.append(capsys.readouterr().out)
    assert word in texts[0]
    assert texts[1].startswith(f"written: {tmp_path / place}\n")
    assert (tmp_path / place).read_text() == texts[0].removesuffix("\n")


def test_a_shell_asks_for_words(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in {"_TPY_COMPLETE": "bash_complete", "COMP_WORDS": "tpy serve --http-po", "COMP_CWORD": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["tpy"])
    with pytest.raises(SystemExit):
        main()
    assert capsys.readouterr().out == "plain,--http-port\n"


def test_every_command_has_a_manual_page() -> None:
    found = pages()
    assert found.keys() == {"tpy.1", *(f"tpy-{name}.1" for name in cli.all_commands())}
    for name in cli.all_commands():
        text = found[f"tpy-{name}.1"]
        assert text.startswith(f".TH TPY\\-{name.upper()}".replace("AUTH-KEY", "AUTH\\-KEY"))
        missing = [each for each in spellings(name) if each.replace("-", "\\-") not in text]
        assert not missing, name


def test_manual_pages_are_sound_roff(tmp_path: Path) -> None:
    try:
        subprocess.run(["groff", "--version"], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no groff")
    for name, text in pages().items():
        (tmp_path / name).write_text(text)
        done = subprocess.run(["groff", "-man", "-Tascii", "-ww", tmp_path / name], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, ""), name
