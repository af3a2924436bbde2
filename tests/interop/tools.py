"""The tools that are installed, and their versions."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

_VERSION_S_MAX = 60.0
_EXAMPLES = Path("src/python/examples")


class MissingTool(Exception):
    """A tool is not installed; the text says what would make it so."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The places of tools: in virtual environments below `folder`, and the peers of the benchmarks.

    `examples` is a work tree or a git directory of Triton's client repository; out of the latter the examples are extracted below
    `scratch`.
    """

    folder: Path
    peers: Path
    scratch: Path
    examples: Path | None = None
    _versions: dict[tuple[str, str], str] = field(default_factory=dict)

    def python(self, environment: str, package: str) -> Path:
        """The Python of an environment that has this package; `MissingTool` when there is none."""
        for root in (self.folder, self.peers):
            python = root / environment / "bin" / "python"
            if python.is_file() and self._is_installed(python, package):
                return python
        raise MissingTool(f"{package} is in no environment '{environment}' of {self.folder.name} or the peers")

    def version(self, environment: str, package: str) -> str:
        """The version of a package."""
        python = self.python(environment, package)
        return self._versions[str(python), package]

    def perf_analyzer(self) -> Path:
        """Triton's load generator; `MissingTool` when there is none."""
        found = self.peers / "perf_analyzer"
        on_path = shutil.which("perf_analyzer")
        if found.is_file():
            return found
        if on_path:
            return Path(on_path)
        raise MissingTool("perf_analyzer is neither on the PATH nor among the peers")

    def perf_analyzer_version(self) -> str:
        """As it says itself."""
        said = subprocess.run(
            [str(self.perf_analyzer()), "--version"],
            capture_output=True,
            text=True,
            env=self.environment(),
            timeout=_VERSION_S_MAX,
            check=False,
        )
        found = re.search(r"Version (\d\S*)", said.stdout + said.stderr)
        return found[1] if found else "unknown"

    def environment(self) -> dict[str, str]:
        """The environment of tools: perf_analyzer and its library, and the `tritonserver` of this project."""
        environment = dict(os.environ)
        cuda = next(iter(self.peers.glob("client/lib/python*/site-packages/nvidia/cuda_runtime/lib")), None)
        if cuda is not None:
            environment["LD_LIBRARY_PATH"] = str(cuda)
        return environment

    def client_examples(self) -> Path:
        """The folder of Triton's client examples in Python; `MissingTool` when there is none."""
        if self.examples is None:
            raise MissingTool("TPY_TRITON_CLIENT names no copy of github.com/triton-inference-server/client")
        if (self.examples / _EXAMPLES).is_dir():
            return self.examples / _EXAMPLES
        extracted = self.scratch / "client"
        if not extracted.is_dir():
            archive = subprocess.run(
                ["git", "-C", str(self.examples), "archive", "HEAD", str(_EXAMPLES)], capture_output=True, check=False
            )
            if archive.returncode != 0:
                raise MissingTool(f"{self.examples} has no {_EXAMPLES}, nor is it a git directory that has")
            extracted.mkdir()
            subprocess.run(["tar", "x", "-C", str(extracted)], input=archive.stdout, check=True)
        return extracted / _EXAMPLES

    def _is_installed(self, python: Path, package: str) -> bool:
        key = (str(python), package)
        if key not in self._versions:
            code = f"import importlib.metadata as metadata; print(metadata.version({package!r}))"
            self._versions[key] = _output([str(python), "-c", code], dict(os.environ))
        return bool(self._versions[key])


def _output(command: list[str], environment: dict[str, str]) -> str:
    """The last line that a command prints; nothing if it fails."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_VERSION_S_MAX, check=False)
    return done.stdout.strip().splitlines()[-1] if done.returncode == 0 and done.stdout.strip() else ""
