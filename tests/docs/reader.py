"""A reader who does what a page says: runs its commands in an empty folder, with servers on free ports."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from itertools import zip_longest
from pathlib import Path

import pytest
from tritonclient.http import InferenceServerClient

from tests.cloud_servers import KEYS, S3Server
from tests.e2e.fork_server import page_fork_server
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until
from tests.ray.serving import environment

from .pages import ROOT, Block, blocks, commands, matches

_COMMAND_S_MAX = 180.0
"""A command of a page that installs packages takes minutes on a machine that is busy."""
_SERVICES = {
    "HTTPService": "localhost:8000",
    "GRPCInferenceService": "localhost:8001",
    "Metrics Service": "localhost:8002",
    "MLflow HTTPService": "localhost:5000",
    "OpenAI HTTPService": "localhost:9000",
    "Sagemaker HTTPService": "localhost:8080",
    "TensorFlow Serving HTTPService": "localhost:8501",
    "TensorFlow Serving GRPCService": "localhost:8500",
    "TorchServe HTTPService": "localhost:8080",
    "Vertex AI HTTPService": "localhost:8080",
}


class Reader:
    """Works through pages. `home` stands for the root of the repository: `docs` and `tests` are there, and what commands make.

    Pages say localhost:8000, localhost:9000 and so on; the reader's server is elsewhere, and commands are changed accordingly.
    """

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._home = home
        self._monkeypatch = monkeypatch
        self._server: ServerProcess | None = None
        self._log_seen = 0
        self._closing = ExitStack()
        self._background: list[subprocess.Popen[bytes]] = []
        for name, real in (("docs", ROOT / "docs"), ("tests", ROOT / "tests"), (".venv", Path(sys.prefix))):
            if not (home / name).exists():
                (home / name).symlink_to(real)
        monkeypatch.chdir(home)
        monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        monkeypatch.setenv("COLUMNS", "120")

    def with_cloud(self, bucket: str) -> None:
        """Give the reader an S3 server with a bucket, its credentials, and an endpoint in place of the provider's."""
        server = self._closing.enter_context(S3Server(bucket))
        endpoints = dict.fromkeys(("AWS_ENDPOINT_URL", "OSS_ENDPOINT"), f"http://{server.host}")
        oss = {"OSS_ACCESS_KEY_ID": "key", "OSS_ACCESS_KEY_SECRET": "secret"}
        for name, value in {**KEYS, **oss, **endpoints, "AWS_ALLOW_HTTP": "true"}.items():
            self._monkeypatch.setenv(name, value)

    def with_ray(self) -> None:
        """Give the reader a home for clusters of Ray that nobody else has."""
        environ = environment(self._home / "home")
        self._closing.callback(shutil.rmtree, environ["RAY_TMPDIR"], ignore_errors=True)
        for name, value in environ.items():
            self._monkeypatch.setenv(name, value)

    def follow(self, page: Path) -> None:
        """Do everything on the page; fails the test with all that is not as the page says."""
        problems: list[str] = []
        todo = list(blocks(page))
        try:
            for block, following in zip_longest(todo, todo[1:]):
                try:
                    self.do(block, following.text if following is not None and "prints" in following.notes else None)
                except AssertionError as problem:
                    problems.append(f"{page.relative_to(ROOT)}:{block.line}: {problem}")
        finally:
            log = self._log()
            self.stop()
            while self._background:
                self.stop()
            self._closing.close()
        if problems:
            pytest.fail("\n".join([*problems, "--- log of the last server", log]), pytrace=False)

    def stop(self) -> None:
        """Ctrl-C, if a server or something in the background is running."""
        if self._server is None and self._background:
            process = self._background.pop()
            process.terminate()
            process.wait(_COMMAND_S_MAX)
        server, self._server = self._server, None
        if server is not None:
            code = server.stop(signal.SIGINT)
            assert code == 0, f"the server ended with {code}:\n{server.log}"

    def do(self, block: Block, shown: str | None) -> None:
        """Do one block; `shown` is what the page says that it prints, if it says so. Raises AssertionError."""
        notes = block.notes
        if "write" in notes:
            target = self._home / notes["write"]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text + "\n", encoding="utf-8")
        elif block.language == "stop":
            self.stop()
        elif "not run" in notes or "file" in notes or "part of" in notes or "config" in notes or "prints" in notes:
            pass
        elif "in the background" in notes:
            for command in commands(block):
                words = ["bash", "-c", f"exec {self._changed(command)}"]
                self._background.append(subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        elif block.language == "sh":
            self._run_all(commands(block), notes, shown or "")
        elif block.language == "python":
            code, printed = self._execute([sys.executable, "-c", self._changed(block.text)])
            assert code == 0, f"the script failed:\n{printed}"
            if shown is not None:
                _compare("the script", shown, printed)
        elif block.language not in ("text", "mermaid"):
            raise AssertionError(f"a block of {block.language!r} needs a comment that says what to do with it")

    def _run_all(self, todo: list[str], notes: dict[str, str], shown: str) -> None:
        """Run commands, which print `shown` all together; one that serves has it in its log."""
        printed = ""
        for command in todo:
            last = command is todo[-1]
            status = int(notes.get("exit", "0")) if last else 0
            if status == 0 and self._serves(command, shown):
                assert last, f"$ {command}\nserves until it is stopped, and cannot have commands after it in its block"
                return
            within_s = float(notes.get("within", "0 s").removesuffix(" s")) if last else 0.0
            code, text = self._ask(command, within_s, lambda text, before=printed: matches(shown, before + text))
            printed += text
            assert code == status, f"$ {command}\nended with {code}, not {status}; it printed:\n{text}"
        _compare("\n".join(todo), shown, printed)

    def _ask(self, command: str, within_s: float, satisfied: Callable[[str], bool]) -> tuple[int, str]:
        """Run a command, again and again for so long until what it prints satisfies."""
        last = 0, ""

        def ask() -> bool:
            nonlocal last
            last = self._execute(["bash", "-c", self._changed(command)])
            return satisfied(last[1])

        with suppress(TimeoutError):
            wait_until(ask, within_s=within_s)
        return last

    def _serves(self, command: str, shown: str) -> bool:
        """Start a server, if that is what the command does, and compare its log with what is shown of it."""
        text = command.replace("\\\n", " ")
        if re.fullmatch(r"make serve(-\w+)?", text):
            text = self._make(text.split()[1])
        words = shlex.split(text)
        variables = []
        while words and "=" in words[0]:
            variables.append(words.pop(0).split("=", 1))
        if [word.removeprefix(".venv/bin/") for word in words[:1]] != ["tpy"] or words[1:2] not in (["serve"], ["dev"]):
            return False
        self.stop()
        for name, value in variables:
            self._monkeypatch.setenv(name, value)
        server = ServerProcess(*words[2:], program=("-m", "tpy", words[1]))
        try:
            self._server = server.__enter__()
        except (RuntimeError, TimeoutError) as problem:
            raise AssertionError(f"$ {text}\n{problem}") from None
        if words[1] == "dev":  # its ports open before the models have loaded
            wait_until(lambda: not _is_loading(server))
        if shown:
            _compare(text, f"...\n{shown}\n...", self._unchanged(self._server.log))
        return True

    def _make(self, target: str) -> str:
        """Build the models of a `serve` target in this folder; the command that serves them. `make test` has set up the rest."""
        # These tests may run under make themselves; what it hands on would change what this make prints.
        plain = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        done = subprocess.run(["make", "-n", target], cwd=ROOT, check=True, capture_output=True, text=True, env=plain)
        *steps, serve = done.stdout.splitlines()
        for step in steps:
            if "build.py" in step:
                code, printed = self._execute(["bash", "-c", step])
                assert code == 0, f"$ {step}\n{printed}"
        return serve.replace(".venv/bin/", "")

    def _execute(self, command: list[str]) -> tuple[int, str]:
        # A server that the page says to fail must not be kept from it by a port that is taken.
        ports = {"TPY_HTTP_PORT": "0", "TPY_GRPC_PORT": "0", "TPY_METRICS_PORT": "0"}
        environment = {**os.environ, **ports, "TPY_HTTP_ADDRESS": "127.0.0.1", "TPY_GRPC_ADDRESS": "127.0.0.1"}
        with tempfile.TemporaryFile() as printed, open(os.devnull, "rb") as null:
            process = None
            if program := _program(command):
                descriptors = null.fileno(), printed.fileno(), printed.fileno()
                process = page_fork_server.start(program[1], environment, *descriptors, program[0])
            if process is None:
                process = subprocess.Popen(command, stdin=null, stdout=printed, stderr=printed, env=environment)
            try:
                code = process.wait(_COMMAND_S_MAX)
            except BaseException:
                process.kill()
                process.wait()
                raise
            printed.seek(0)
            return code, self._unchanged(printed.read().decode())

    def _addresses(self) -> list[tuple[str, str]]:
        if self._server is None:
            return []
        server = self._server
        found = [(shown, server.address(service)) for service, shown in _SERVICES.items()]
        return [(shown, address) for shown, address in found if address is not None]

    def _changed(self, text: str) -> str:
        for shown, real in self._addresses():
            text = text.replace(shown, real)
        if self._server is not None and self._server.address("HTTPService") is not None:
            for command in ("demo", "infer"):
                text = text.replace(f"tpy {command} ", f"tpy {command} --port {self._server.http.rpartition(':')[2]} ")
            for command in ("explain", "rollout"):
                text = text.replace(f"tpy {command} ", f"tpy {command} --url {self._server.http} ")
            text = text.replace("tpy top ", f"tpy top --url {self._server.http} --metrics-url {self._server.metrics} ")
        return text

    def _unchanged(self, text: str) -> str:
        for shown, real in self._addresses():
            text = text.replace(f"ervice at {real}", f"ervice at {shown.replace('localhost', '0.0.0.0')}").replace(real, shown)
        return text

    def _log(self) -> str:
        return "" if self._server is None else re.sub(r"(?m)^[|+].*\n", "", self._server.log)


def _is_loading(server: ServerProcess) -> bool:
    with InferenceServerClient(server.http) as client:
        return any(model.get("state") == "LOADING" for model in client.get_model_repository_index())


def _program(command: list[str]) -> tuple[list[str], list[str]] | None:
    """The Python program of a command, as `python PROGRAM ARGUMENT...` has it, and its arguments; None if it needs a shell, or is
    something else."""
    if command[0] == sys.executable:
        return command[1:3], command[3:]
    text = command[-1].replace("\\\n", " ")
    if re.search(r"[^\w\s./:=,@'\"+-]", text) or "\n" in text.strip():
        return None
    match [word.removeprefix(".venv/bin/") for word in shlex.split(text)]:
        case ["tpy", *arguments]:
            return ["-m", "tpy"], arguments
        case ["python", "-m" | "-c" as how, what, *arguments]:
            return [how, what], arguments
        case ["python", file, *arguments] if file.endswith(".py"):
            return [file], arguments
    return None


def _compare(what: str, shown: str, printed: str) -> None:
    assert matches(shown, printed), f"$ {what}\nthe page shows:\n{shown}\nbut it printed:\n{printed}"
