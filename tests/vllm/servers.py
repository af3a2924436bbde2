"""Servers of these tests: ours with engines of vLLM, and vLLM's own with OpenAI's API, to compare with."""

from __future__ import annotations

import json
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from openai import APIConnectionError, OpenAI

from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until
from tests.vllm.place import ENVIRONMENT

PYTHON = ENVIRONMENT / "bin" / "python"
START_S = 200


@contextmanager
def our_server(repository: Path, names: Sequence[str], *flags: str) -> Iterator[ServerProcess]:
    """A server with these models of the repository, which may fail. They are loaded one after another: an engine starts three
    processes that import vLLM, and several at once take minutes on two processors."""
    with ServerProcess("--model-control-mode=explicit", "--allow-openai=true", *flags, repositories=[repository]) as server:
        for name in names:
            try:
                urllib.request.urlopen(f"http://{server.http}/v2/repository/models/{name}/load", b"{}", START_S).close()
            except urllib.error.HTTPError as error:
                error.close()
        yield server


def client_of(address: str) -> OpenAI:
    """A client that tries once."""
    return OpenAI(base_url=f"http://{address}/v1", api_key="none", max_retries=0)


@contextmanager
def vllms_server(name: str, arguments: dict[str, Any], folder: Path) -> Iterator[OpenAI]:
    """A client of vLLM's own server for the model of these engine arguments, under this name."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--served-model-name", name]
    command += ["--host", "127.0.0.1", "--port", str(port), *options_of(arguments)]
    with (folder / f"{name}.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
    try:
        with client_of(f"127.0.0.1:{port}") as client:
            wait_until(lambda: process.poll() is not None or is_up(client), within_s=START_S)
            assert process.poll() is None, (folder / f"{name}.log").read_text()
            yield client
    finally:
        process.terminate()
        process.wait()


def options_of(arguments: dict[str, Any]) -> list[str]:
    """Engine arguments as options of a command line."""
    found = []
    for name, value in arguments.items():
        option = f"--{name.replace('_', '-')}"
        found += [option] if value is True else [option, value if isinstance(value, str) else json.dumps(value)]
    return found


def is_up(client: OpenAI) -> bool:
    """True once it answers."""
    try:
        return bool(client.models.list().data)
    except APIConnectionError:
        return False
