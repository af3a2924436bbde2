"""Tries what it is asked to do, and answers what came of it."""

import os
import socket
import subprocess
import tempfile

import numpy as np

import triton_python_backend_utils as pb_utils


def count() -> str:
    """Computes something."""
    return str(np.arange(4).sum())


def note() -> str:
    """Writes a temporary file."""
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("x")
    return "written"


def look() -> str:
    """Reads a file of somebody else."""
    with open("/etc/shadow", encoding="ascii") as file:
        return file.readline()


def phone() -> str:
    """Calls somebody."""
    with socket.create_connection(("127.0.0.1", 8000)):
        return "connected"


def run() -> str:
    """Runs a program."""
    return subprocess.run(["/bin/true"], check=True).args[0]


def kill() -> str:
    """Asks the server to end."""
    os.kill(os.getppid(), 15)
    return "killed"


ACTIONS = {each.__name__: each for each in (count, note, look, phone, run, kill)}


class TritonPythonModel:
    """DO names an action, DONE is what came of it."""

    def execute(self, requests):
        """Try each."""
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        name = pb_utils.get_input_tensor_by_name(request, "DO").as_numpy()[0].decode()
        try:
            done = ACTIONS[name]()
        except OSError as error:
            done = f"{type(error).__name__}: {error.strerror}"
        return pb_utils.InferenceResponse([pb_utils.Tensor("DONE", np.array([done.encode()], object))])
