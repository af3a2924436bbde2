"""EXECUTION_ENV_PATH, backend settings, parameters."""

from __future__ import annotations

import gzip
import sys
import tarfile
from pathlib import Path

import pytest

from tests.backends.python.conftest import Serve
from tpy.errors import Internal, InvalidArgument
from tpy_data.backends.python.environment.interpreters import Environments
from tpy_data.backends.python.settings import PythonSettings, read_settings

WHERE = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(tensor(np.array([sys.executable, os.environ["PATH"]], dtype=object)))]
"""


def _environment(folder: Path) -> Path:
    """An environment whose python is the one that runs the tests."""
    (folder / "bin").mkdir(parents=True)
    python = folder / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    return folder


def test_a_directory_inside_the_model(make: Serve) -> None:
    served = make(WHERE, parameters={"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"})
    environment = _environment(served.context.model_directory / "env")
    assert Path(served.output()[0].decode()).name.startswith("python")
    assert served.output()[1].decode().startswith(f"{environment}/bin:")


def test_an_archive_is_unpacked_once_per_path_and_time(make: Serve, tmp_path: Path) -> None:
    environment = _environment(tmp_path / "env")
    archive = tmp_path / "env.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(environment, ".")
    served = make(WHERE, parameters={"EXECUTION_ENV_PATH": str(archive)})
    environments = Environments()
    first = environments.interpreter(served.context)
    assert environments.interpreter(served.context) == first
    assert Path(first.executable).is_file()
    archive.touch()
    assert environments.interpreter(served.context) != first
    environments.close()
    assert not Path(first.executable).exists()
    served.output()


def test_a_runtime_names_an_archive_beside_the_model(make: Serve, tmp_path: Path) -> None:
    served = make(WHERE, runtime="small")
    environments = Environments()
    assert environments.interpreter(served.context).executable == sys.executable
    with tarfile.open(served.context.model_directory / "pb_exec_env_small.tar.gz", "w:gz") as packed:
        packed.add(_environment(tmp_path / "env"), ".")
    assert environments.interpreter(served.context).bin_directory
    environments.close()


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("$$TRITON_MODEL_DIRECTORY/../../elsewhere", "leads out of the model's directory"),
        ("/no/such/place", "no directory or archive at '/no/such/place'"),
        ("$$TRITON_MODEL_DIRECTORY", "has no executable bin/python3 or bin/python"),
    ],
)
def test_environments_that_are_refused(make: Serve, path: str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        make(WHERE, parameters={"EXECUTION_ENV_PATH": path}).run()


def test_an_archive_that_is_none_or_leads_outside(make: Serve, tmp_path: Path) -> None:
    broken = tmp_path / "broken.tar.gz"
    broken.write_bytes(b"not an archive")
    with pytest.raises(Internal, match="cannot unpack execution environment") as refused:
        make(WHERE, parameters={"EXECUTION_ENV_PATH": str(broken)}).run()
    assert "; method gz: ReadError('not a gzip file'); " in refused.value.message, "one line"
    bomb = tmp_path / "bomb.tar.gz"
    head = tarfile.TarInfo("zeros")
    head.size = 2 * 1024**3  # which is never written: the head says it
    bomb.write_bytes(gzip.compress(head.tobuf()))
    with pytest.raises(Internal, match="it unpacks to more than 1073741824 bytes, at most 50 times its size are accepted"):
        make(WHERE, parameters={"EXECUTION_ENV_PATH": str(bomb)}).run()
    empty = tmp_path / "empty.tar.gz"
    with tarfile.open(empty, "w:gz") as packed:
        packed.add(broken, "something")
    with pytest.raises(InvalidArgument, match=rf"'{empty}' has no executable bin/python3 or bin/python$"):
        make(WHERE, parameters={"EXECUTION_ENV_PATH": str(empty)}).run()
    escaping = tmp_path / "escaping.tar.gz"
    with tarfile.open(escaping, "w:gz") as packed:
        packed.add(broken, "../outside")
    with pytest.raises(Internal, match="cannot unpack execution environment"):
        make(WHERE, parameters={"EXECUTION_ENV_PATH": str(escaping)}).run()


def test_an_interpreter_that_does_not_run(make: Serve) -> None:
    served = make(WHERE, parameters={"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"})
    python = _environment(served.context.model_directory / "env") / "bin" / "python3"
    python.write_text("#!/bin/sh\necho no such library >&2\nexit 3\n")
    with pytest.raises(Internal, match=r"is not healthy\. Its interpreter exited with status 3 .*: no such library$"):
        served.run()
    python.write_text("no program")
    with pytest.raises(Internal, match=r"cannot start .*bin/python3 for 'm_0'"):
        served.run()


def test_an_interpreter_without_numpy_says_so(make: Serve) -> None:
    served = make(WHERE, parameters={"EXECUTION_ENV_PATH": "$$TRITON_MODEL_DIRECTORY/env"})
    python = _environment(served.context.model_directory / "env") / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    with pytest.raises(Internal, match="cannot run a worker of the python backend: ModuleNotFoundError: No module named 'numpy'"):
        served.run()


def test_parameters_that_contradict(make: Serve) -> None:
    with pytest.raises(InvalidArgument, match="TPY_PYTHON_ISOLATION of model 'm' is 'fibre'"):
        make(WHERE, "fibre").run()
    with pytest.raises(InvalidArgument, match="EXECUTION_ENV_PATH needs isolation 'process'"):
        make(WHERE, "thread", parameters={"EXECUTION_ENV_PATH": "/env"}).run()


def test_settings() -> None:
    assert read_settings({}) == PythonSettings()
    assert read_settings({"stub-timeout-seconds": "5"}) == PythonSettings(start_timeout_s=5, initialize_timeout_s=5)
    assert read_settings({"stub-timeout-seconds": "5", "initialize-timeout-seconds": "9"}).initialize_timeout_s == 9
    for text in ("0", "-1", "soon", "inf", "nan"):
        with pytest.raises(InvalidArgument, match=f"python,stub-timeout-seconds={text}: expected a number of seconds above 0"):
            read_settings({"stub-timeout-seconds": text})


def test_settings_without_meaning_are_mentioned_once(make: Serve) -> None:
    served = make(WHERE, settings={"shm-default-byte-size": "1048576", "backend-directory": "/x"})
    served.output()
    served.backend.auto_complete(served.context)
    assert served.logged("warning") == [
        "--backend-config=python,shm-default-byte-size has no meaning in this server and is ignored"
    ]


@pytest.mark.parametrize(
    ("key", "text", "told"),
    [
        ("shm-default-byte-size", "1", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("shm-growth-byte-size", "0", "shm-growth-byte-size can't be smaller than or equal to zero."),
        ("thread-pool-size", "0", "thread-pool-size can't be less than 1."),
        ("shm_message_queue_size", "0", "expected a whole number above 0"),
        ("thread-pool-size", "x", "expected a whole number"),
        ("shm-region-prefix-name", "", "must be at least one character long"),
    ],
)
def test_settings_that_triton_refuses(make: Serve, key: str, text: str, told: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        make(None, settings={key: text})
    assert told in caught.value.message
