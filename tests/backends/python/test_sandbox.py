"""The parameter `sandbox`: a model that tries to get out, ordinary models that run all the same, values that are refused."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.backends import onnx_models
from tests.backends.python.calls import FakeServer, surround
from tests.backends.python.conftest import Serve, request
from tpy.backend import InstancePlacement
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelParameter
from tpy.errors import InvalidArgument, Unavailable
from tpy.testing.hosting import HostedModel
from tpy.testing.requests import RecordingSender, request_of
from tpy_data.backends.python import sandboxing
from tpy_data.backends.python.worker import sandbox
from tpy_data.registry import BackendRegistry

pytestmark = pytest.mark.skipif(bool(sandbox.missing_parts()), reason=f"this kernel lacks {sandbox.missing_parts()}")

ATTEMPTS = """
import ctypes, errno, signal, socket, subprocess, tempfile, resource, multiprocessing

class TritonPythonModel:
    def execute(self, requests):
        asked = json.loads(bytes(given(requests[0]).tobytes()).decode())
        libc = ctypes.CDLL(None, use_errno=True)

        def system_call(number, *arguments):
            if libc.syscall(number, *arguments) < 0:
                error = ctypes.get_errno()
                raise OSError(error, os.strerror(error))

        def write(path):
            with open(path, "w") as file:
                file.write("x")

        def read(path):
            with open(path) as file:
                return file.read(1)

        def in_child(act):
            child = os.fork()
            if child == 0:
                try:
                    act()
                except OSError:
                    os._exit(7)
                os._exit(0)
            if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7:
                raise PermissionError(errno.EACCES, "in the child")

        server, secret, elsewhere = asked["server"], asked["secret"], asked["elsewhere"]
        attempts = {
            "connect": lambda: socket.create_connection(("127.0.0.1", asked["port"])),
            "bind": lambda: socket.socket(socket.AF_INET).bind(("127.0.0.1", 0)),
            "IPv6": lambda: socket.socket(socket.AF_INET6),
            "datagrams": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
            "raw packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW),
            "Unix socket": lambda: socket.socket(socket.AF_UNIX).connect(asked["unix"]),
            "io_uring": lambda: system_call(425, 1, None),
            "write elsewhere": lambda: write(elsewhere),
            "write into its folder": lambda: write(os.path.join(asked["model"], "x")),
            "truncate": lambda: os.truncate(secret, 0),
            "remove": lambda: os.remove(secret),
            "rename": lambda: os.rename(secret, elsewhere),
            "link": lambda: os.link(secret, os.path.join(tempfile.gettempdir(), "link")),
            "chmod": lambda: os.chmod(secret, 0o777),
            "chown": lambda: os.chown(secret, 0, 0),
            "utime": lambda: os.utime(asked["model"]),
            "xattr": lambda: os.setxattr(secret, "user.x", b"x"),
            "read a secret": lambda: read(secret),
            "read through a link": lambda: read(secret_link()),
            "list": lambda: os.listdir(os.path.dirname(secret)),
            "read the environment of the server": lambda: read(f"/proc/{server}/environ"),
            "read the command of the server": lambda: read(f"/proc/{server}/cmdline"),
            "read the memory of the server": lambda: read(f"/proc/{server}/mem"),
            "shared memory of others": lambda: write("/dev/shm/x"),
            "run a program": lambda: subprocess.run([asked["program"]]),
            "run a program from memory": lambda: run_from_memory(asked["program"]),
            "run a program in a child": lambda: in_child(lambda: os.execv(asked["program"], ["x"])),
            "read in a child": lambda: in_child(lambda: read(secret)),
            "signal": lambda: os.kill(server, 0),
            "kill": lambda: os.kill(server, signal.SIGURG),
            "signal a descriptor": lambda: signal.pidfd_send_signal(os.pidfd_open(server), 0),
            "ptrace": lambda: system_call(101, 16, server, None, None),
            "limits": lambda: resource.prlimit(server, resource.RLIMIT_NOFILE, (64, 64)),
            "namespace": lambda: system_call(56, 0x10000000 | signal.SIGCHLD, None, None, None, None),
            "unshare": lambda: system_call(272, 0x10000000),
            "mount": lambda: system_call(165, b"none", b"/mnt", b"tmpfs", 0, None),
            "device": lambda: os.mknod(os.path.join(tempfile.gettempdir(), "disk"), 0o60600, os.makedev(8, 0)),
            "semaphores of others": lambda: system_call(64, 0x1234, 1, 0o666),
            "keys": lambda: system_call(250, 0, -3, 0),
            "x32": lambda: system_call(0x40000000 + 41, 2, 1, 0),
        }

        def secret_link():
            path = tempfile.mktemp()
            os.symlink(secret, path)
            return path

        def run_from_memory(program):
            with open(program, "rb") as file:
                content = file.read()
            descriptor = os.memfd_create("x")
            os.write(descriptor, content)
            in_child(lambda: os.execve(descriptor, ["x"], {}))

        outcomes = {}
        for name, attempt in attempts.items():
            try:
                attempt()
            except OSError as error:
                refused = (errno.EPERM, errno.EACCES, errno.EXDEV, errno.ENOSYS)
                outcomes[name] = "refused" if error.errno in refused else repr(error)
            except BaseException as error:
                outcomes[name] = repr(error)
            else:
                outcomes[name] = "DONE"
        return [answer(tensor(np.frombuffer(json.dumps(outcomes).encode(), np.uint8)))]
"""


def asked(**values: object) -> Any:
    return request(np.frombuffer(json.dumps(values).encode(), np.uint8))


@pytest.fixture
def target(tmp_path: Path) -> Iterator[dict[str, object]]:
    """Targets: a key file, a port, a program."""
    secret = tmp_path / "auth.toml"
    secret.write_text("secret")
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
        unix.listen()
        yield {
            "server": os.getpid(),
            "secret": str(secret),
            "elsewhere": str(tmp_path / "elsewhere"),
            "port": listening.getsockname()[1],
            "unix": str(tmp_path / "socket"),
            "program": "/bin/true",
            "model": str(tmp_path / "repository0" / "m"),
        }
    assert secret.read_text() == "secret"


def outcomes(serve: Serve, target: dict[str, object], **options: Any) -> dict[str, str]:
    served = serve(ATTEMPTS, "process", **options)
    return dict(json.loads(served.output(asked(**target)).tobytes()))


def test_a_model_that_tries_to_get_out(make: Serve, target: dict[str, object]) -> None:
    found = outcomes(make, target, parameters={"sandbox": "require"})
    assert len(found) > 35
    assert {name: outcome for name, outcome in found.items() if outcome != "refused"} == {}


def test_most_of_that_works_without(make: Serve, target: dict[str, object]) -> None:
    """The attempts are real ones."""
    without = """
        import socket, subprocess

        class TritonPythonModel:
            def execute(self, requests):
                asked = json.loads(bytes(given(requests[0]).tobytes()).decode())
                socket.create_connection(("127.0.0.1", asked["port"])).close()
                subprocess.run([asked["program"]], check=True)
                os.kill(asked["server"], 0)
                open(asked["elsewhere"], "w").close()
                os.chmod(asked["secret"], 0o600)
                return [answer(tensor(np.frombuffer(open(asked["secret"]).read().encode(), np.uint8)))]
    """
    assert make(without).output(asked(**target)).tobytes() == b"secret"


ORDINARY = """
import asyncio, multiprocessing, sqlite3, ssl, tempfile, threading, zoneinfo

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.set_max_batch_size(0)
        return config

    def initialize(self, args):
        with open(os.path.join(args["model_repository"], "words.txt")) as file:
            self.words = file.read()

    async def execute(self, requests):
        assert self.words == "words"
        with tempfile.NamedTemporaryFile() as file:
            np.save(file, given(requests[0]))
            file.seek(0)
            array = np.load(file)
        folder = tempfile.mkdtemp()
        with sqlite3.connect(os.path.join(folder, "x")) as database:
            database.execute("create table x (y)")
        reading, writing = multiprocessing.Pipe()
        child = multiprocessing.get_context("fork").Process(target=lambda: writing.send(os.getpid()))
        child.start()
        assert reading.recv() == child.pid
        child.join()
        threads = [threading.Thread(target=np.dot, args=(np.ones((300, 300)), np.ones((300, 300)))) for _ in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        await asyncio.sleep(0)
        assert os.environ["TMPDIR"] == tempfile.gettempdir() != "/tmp"
        os.kill(os.getpid(), 0)
        zoneinfo.ZoneInfo("Europe/Berlin")
        ssl.create_default_context()
        return [answer(tensor(array * 2)) for _ in requests]
"""


def test_an_ordinary_model_does_not_notice(make: Serve) -> None:
    served = make(ORDINARY, parameters={"sandbox": "require"}, files={"words.txt": "words"})
    completed = served.backend.auto_complete(served.context)
    assert completed.max_batch_size == 0
    for elements in (3, 1_000_000):  # in a message, and in shared memory
        array = np.arange(elements, dtype=np.float32)
        np.testing.assert_array_equal(served.output(request(array)), array * 2)
    folders = [each for each in os.listdir(tempfile.gettempdir()) if each.startswith("tpy-sandbox-")]
    assert len(folders) == 1
    served.close()
    assert [each for each in os.listdir(tempfile.gettempdir()) if each in folders] == []


def test_the_servers_environment_is_not_the_models(make: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it has been at the start: it is read from there by whoever looks."""
    for name in ("AWS_SECRET_ACCESS_KEY", "TPY_HTTP_RESTRICTED_API", "WANTED"):
        monkeypatch.setenv(name, f"value of {name}")
    served = make(
        """
        class TritonPythonModel:
            def execute(self, requests):
                found = open("/proc/self/environ").read() + repr(dict(os.environ))
                return [answer(tensor(np.frombuffer(found.encode(), np.uint8))) for _ in requests]
        """,
        parameters={"sandbox": '{"environment": ["WANTED"]}'},
    )
    text = served.output().tobytes().decode()
    assert set(re.findall(r"value of (\w+)", text)) == {"WANTED"}


def test_onnx_runtime_in_a_model(make: Serve) -> None:
    served = make(
        """
        class TritonPythonModel:
            def initialize(self, args):
                import onnxruntime
                path = os.path.join(args["model_repository"], "1", "affine.onnx")
                self.session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])

            def execute(self, requests):
                return [answer(tensor(self.session.run(None, {"INPUT": given(each)[None]})[0][0])) for each in requests]
        """,
        parameters={"sandbox": "require"},
    )
    (served.context.version_directory / "affine.onnx").write_bytes(onnx_models.affine(2.0, 1.0))
    assert served.output().tolist() == [1, 3, 5]


def test_it_streams_and_calls_other_models_but_loads_none(make: Serve) -> None:
    code = """
        class TritonPythonModel:
            def execute(self, requests):
                for each in requests:
                    sender = each.get_response_sender()
                    call = pb_utils.InferenceRequest(
                        model_name="other", inputs=[tensor(given(each), "IN")], requested_output_names=["OUT"]
                    )
                    sender.send(answer(tensor(pb_utils.get_output_tensor_by_name(call.exec(), "OUT").as_numpy())))
                    for change in (pb_utils.load_model, pb_utils.unload_model):
                        try:
                            change("other")
                        except pb_utils.TritonModelException as error:
                            sender.send(answer(tensor(np.frombuffer(str(error).encode(), np.uint8))))
                    sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    """
    server = FakeServer()
    served = surround(make(code, parameters={"sandbox": "require"}, decoupled=True), server)
    sender = RecordingSender()
    served.run(request(sender=sender))
    assert sender.finished.wait(20)
    answers = [result.outputs[0].array for result, _ in sender.sent if result is not None]
    assert answers[0].tolist() == [0, 1, 2]
    texts = [each.tobytes().decode() for each in answers[1:]]
    assert [text.rpartition(": ")[2] for text in texts] == [
        "a model in a sandbox cannot load models",
        "a model in a sandbox cannot unload models",
    ]
    assert server.loads == server.unloads == []


def test_paths_network_and_programs_can_be_allowed(make: Serve, target: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    allowed = {
        "network": "allow",
        "programs": "allow",
        "read": [str(target["secret"])],
        "write": [str(tmp_path / "given"), "."],
    }
    here = {**target, "elsewhere": str(tmp_path / "given" / "x")}
    found = outcomes(make, here, parameters={"sandbox": json.dumps(allowed)})
    done = {name for name, outcome in found.items() if outcome == "DONE"}
    assert done >= {"connect", "bind", "read a secret", "write elsewhere", "write into its folder", "run a program"}
    assert done & {"truncate", "chmod", "kill", "ptrace", "list", "shared memory of others", "io_uring"} == set()


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (
            "on",
            "parameter sandbox of model 'm' is not a sandbox: Invalid enum value 'on'.*; expected 'require', 'best-",
        ),
        ("{", "is not a sandbox: Input data was truncated"),
        ('{"net": "none"}', "unknown field `net`"),
        ('{"network": "some"}', r"Invalid enum value 'some' - at `\$.network`"),
        ('{"read": "/data"}', r"Expected `array`, got `str` - at `\$.read`"),
        (
            '{"read": ["/no/such/folder"]}',
            "'/no/such/folder' in 'read' is not there; expected an absolute path",
        ),
        ('{"write": ["../n"]}', "'../n' in 'write' is not there"),
        ('{"write": ["/"]}', "'/' in 'write' is the whole disk"),
        (json.dumps({"read": ["/usr"] * 65}), r"Expected `array` of length <= 64 - at `\$.read`"),
    ],
)
def test_wrong_values_are_refused(make: Serve, value: str, problem: str) -> None:
    served = make(ORDINARY, parameters={"sandbox": value})
    with pytest.raises(InvalidArgument, match=problem):
        served.backend.load(served.context)


def test_a_backend_has_it_for_all_models_that_say_nothing(make: Serve) -> None:
    served = make(ORDINARY, settings={"sandbox": "on"})
    with pytest.raises(InvalidArgument, match="--backend-config=python,sandbox is not a sandbox: Invalid enum value 'on'"):
        served.backend.load(served.context)


def test_threads_have_none(make: Serve) -> None:
    served = make(ORDINARY, "thread", parameters={"sandbox": "require"})
    with pytest.raises(InvalidArgument, match="model 'm': sandbox needs isolation 'process', not 'thread'"):
        served.backend.load(served.context)


def test_models_of_other_backends_need_a_process() -> None:
    registry = BackendRegistry(log=lambda level, text: None)
    config = ModelConfig(name="m", backend="identity", parameters={"sandbox": ModelParameter(string_value="require")})
    with pytest.raises(InvalidArgument, match="model 'm': sandbox needs isolation 'process', not 'thread'"):
        registry.for_model(config)


def test_an_older_kernel(make: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandboxing, "missing_parts", lambda: ["signals (Landlock 6, Linux 6.12)"])
    served = make(ORDINARY, parameters={"sandbox": "require"}, files={"words.txt": "words"})
    with pytest.raises(Unavailable, match=r"this machine lacks signals .*; expected a newer kernel, or 'best-effort'"):
        served.backend.load(served.context)
    served = make(ORDINARY, parameters={"sandbox": "best-effort"})
    served.backend.load(served.context)
    assert "lacks signals (Landlock 6, Linux 6.12); the model goes without" in served.logged("warning")[0]


def test_a_model_of_another_backend_in_a_process(tmp_path: Path) -> None:
    parameters = {"isolation": ModelParameter(string_value="process"), "sandbox": ModelParameter(string_value="require")}
    config = ModelConfig(name="m", backend="onnxruntime", parameters=parameters)
    context = onnx_models.write(tmp_path, onnx_models.affine(2.0, 1.0), config)
    registry = BackendRegistry(log=lambda level, text: None)
    try:
        backend = registry.for_model(config)
        context = msgspec.structs.replace(context, config=backend.auto_complete(context))
        model = HostedModel(backend, context)
        instance = model.instance(InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU))
        array = np.ones((1, 3), np.float32)
        (result,) = instance.execute(request_of(context.config, {"INPUT": array}))
        assert result.error is None, result.error
        assert result.outputs[0].array.tolist() == [[3, 3, 3]]
        model.close()
        refused = ModelParameter(string_value="on")
        wrong = msgspec.structs.replace(context.config, parameters={**parameters, "sandbox": refused})
        with pytest.raises(InvalidArgument, match="parameter sandbox of model 'm' is not a sandbox"):
            HostedModel(backend, msgspec.structs.replace(context, config=wrong)).instance(
                InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
            )
    finally:
        registry.close()
