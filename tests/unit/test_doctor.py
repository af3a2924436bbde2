"""tpy doctor: each line says what was found and what to do; what would stop a server makes it end with 1."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from tpy.cli import main
from tpy.doctor import DoctorFinding, Verdict
from tpy.units import MIB
from tpy_data.gpus import Gpu, GpuInventory
from tpy_data.onnxruntime_packages import installed_packages, package_clash
from tpy_native import doctor as compiled
from tpy_tools.commands import doctor_backends
from tpy_tools.commands import doctor_machine as doctor
from tpy_tools.commands.doctor_machine import examine, report


def finding(findings: Sequence[DoctorFinding], subject: str) -> DoctorFinding:
    [found] = [each for each in findings if each.subject == subject]
    return found


@pytest.fixture
def versions(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The only distributions that there are; change them."""
    installed: dict[str, str] = {}
    real = metadata.version

    def version(name: str) -> str:
        if not name.startswith("onnxruntime"):
            return real(name)
        if name not in installed:
            raise metadata.PackageNotFoundError(name)
        return installed[name]

    monkeypatch.setattr(metadata, "version", version)
    return installed


@pytest.fixture
def cgroups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(doctor, "_CGROUPS", tmp_path)
    return tmp_path


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def test_a_machine_in_order(tmp_path: Path) -> None:
    (tmp_path / "m").mkdir()
    findings = examine([tmp_path], {"http-port": ("127.0.0.1", 0)})
    text, sound = report(findings, as_json=False)
    assert sound
    assert len(text.splitlines()) == len(findings)
    assert {"Python", "packages", "ONNX Runtime", "port 0", "open files", "memory", "processors", "/dev/shm"} <= {
        each.subject for each in findings
    }
    assert "CPUExecutionProvider" in finding(findings, "ONNX Runtime").found
    assert finding(findings, f"repository {tmp_path}").found == "1 folder"


def test_what_stops_a_server_is_an_error(taken: int, tmp_path: Path) -> None:
    findings = examine([tmp_path / "nosuch"], {"grpc-port": ("127.0.0.1", taken)})
    port = finding(findings, f"port {taken}")
    assert port.verdict is Verdict.ERROR
    assert "in use" in port.found
    assert "--grpc-port" in port.advice
    assert finding(findings, f"repository {tmp_path / 'nosuch'}").found == "No such file or directory"
    text, sound = report(findings, as_json=True)
    document = json.loads(text)
    assert not sound
    assert document["ok"] is False
    assert [each["subject"] for each in document["findings"] if each["verdict"] == "error"] == [
        f"port {taken}",
        f"repository {tmp_path / 'nosuch'}",
    ]


def test_the_command(taken: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    ports = [f"--http-port={taken}", "--grpc-port=0", "--metrics-port=0", "--http-address=127.0.0.1"]
    monkeypatch.setattr("sys.argv", ["tpy", "doctor", *ports])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 1
    assert f"error    port {taken}: 127.0.0.1:{taken}: Address already in use; " in capsys.readouterr().out


def test_two_onnx_runtimes_are_named_with_the_command_that_mends_it(versions: dict[str, str]) -> None:
    versions["onnxruntime"] = "1.31.1"
    assert package_clash() == ""
    versions["onnxruntime-gpu"] = "1.31.0"
    assert installed_packages() == {"onnxruntime": "1.31.1", "onnxruntime-gpu": "1.31.0"}
    findings = examine([], {})
    told = [each for each in findings if each.subject == "ONNX Runtime"]
    assert told[0].verdict is Verdict.WARNING
    assert told[0].found.startswith("onnxruntime and onnxruntime-gpu are both installed")
    assert told[0].advice == "fix it with: pip uninstall -y onnxruntime onnxruntime-gpu && pip install onnxruntime-gpu"
    assert told[0].advice in package_clash()


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["trio>=0.30", "nosuch-package>=1", "other-nosuch ; extra == 'redis'"]
    monkeypatch.setattr(metadata.Distribution, "requires", property(lambda distribution: wanted))
    findings = examine([], {})
    packages = finding(findings, "packages")
    assert (packages.verdict, packages.found, packages.advice) == (
        Verdict.ERROR,
        "missing: nosuch-package",
        "pip install nosuch-package",
    )
    assert finding(findings, "extra redis") == DoctorFinding(
        "extra redis", Verdict.OK, "not installed", "pip install other-nosuch"
    )


@pytest.mark.parametrize("version", [1, 2])
def test_limits_of_a_container(cgroups: Path, version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(8)))
    if version == 2:
        (cgroups / "memory.max").write_text("268435456\n")
        (cgroups / "cpu.max").write_text("150000 100000\n")
    else:
        (cgroups / "memory").mkdir()
        (cgroups / "cpu").mkdir()
        (cgroups / "memory/memory.limit_in_bytes").write_text("268435456\n")
        (cgroups / "cpu/cpu.cfs_quota_us").write_text("150000\n")
        (cgroups / "cpu/cpu.cfs_period_us").write_text("100000\n")
    findings = examine([], {})
    assert finding(findings, "memory").verdict is Verdict.WARNING
    assert finding(findings, "memory").found.endswith("limited to 256 MiB by the container")
    assert finding(findings, "processors").found == "8 cores, limited to 1.5 by the container"


def test_no_limits_are_no_limits(cgroups: Path) -> None:
    (cgroups / "memory.max").write_text("max\n")
    (cgroups / "cpu.max").write_text("max 100000\n")
    findings = examine([], {})
    assert "container" not in finding(findings, "memory").found + finding(findings, "processors").found


def test_few_files_and_little_shared_memory_warn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("resource.getrlimit", lambda which: (1024, 1024))
    usage = SimpleNamespace(total=64 << 20, free=64 << 20)
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    findings = examine([], {})
    assert (finding(findings, "open files").verdict, finding(findings, "/dev/shm").verdict) == (Verdict.WARNING, Verdict.WARNING)
    assert "--shm-size" in finding(findings, "/dev/shm").advice


def test_gpus_that_the_runtime_cannot_use(versions: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    versions["onnxruntime"] = "1.31.1"
    there = GpuInventory(gpus=(Gpu(id=0, compute_capability=(9, 0), name="NVIDIA H100"), Gpu(id=1)))
    monkeypatch.setattr(doctor, "visible_gpus", lambda: there)
    findings = examine([], {})
    assert finding(findings, "GPU 0").found == "NVIDIA H100, compute capability 9.0"
    assert finding(findings, "GPU 1").verdict is Verdict.WARNING
    assert finding(findings, "GPUs").advice == "pip uninstall -y onnxruntime && pip install onnxruntime-gpu"


def test_gpus_whose_driver_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "visible_gpus", lambda: GpuInventory(trouble="the driver refuses: CUDA error 803"))
    found = finding(examine([], {}), "GPUs")
    assert (found.verdict, found.found) == (Verdict.WARNING, "the driver refuses: CUDA error 803")


def entry_point(name: str, value: str) -> metadata.EntryPoint:
    return metadata.EntryPoint(name, value, "tpy.backends")


def test_every_backend_has_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    findings = {each.subject: each for each in doctor_backends.backends()}
    assert set(findings) == {f"backend {each.name}" for each in metadata.entry_points(group="tpy.backends") if each.name != ".so"}
    assert findings["backend identity"].found == "needs nothing more"
    assert findings["backend onnxruntime"].found.startswith("ONNX Runtime: onnxruntime")
    monkeypatch.setattr(doctor_backends, "version_of", lambda name: "")
    findings = {each.subject: each for each in doctor_backends.backends()}
    assert findings["backend litert"] == DoctorFinding(
        "backend litert",
        Verdict.OK,
        "LiteRT is not installed",
        "for its models: tpy's extra `litert`, or `pip install ai-edge-litert`",
    )


def test_a_framework_counts_whichever_distribution_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor_backends, "version_of", lambda name: "2.20" if name == "tensorflow" else "")
    assert finding(list(doctor_backends.backends()), "backend tensorflow").found == "TensorFlow: tensorflow 2.20"


def test_a_backend_that_cannot_be_imported_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [entry_point("odd", "tests.unit.nosuch:create"), entry_point("theirs", "json:loads")]
    monkeypatch.setattr(doctor_backends, "installed", lambda group: points)
    odd, theirs = doctor_backends.backends()
    assert odd.verdict is Verdict.WARNING
    assert "ModuleNotFoundError" in odd.found
    assert (theirs.verdict, theirs.found) == (Verdict.OK, "comes from json:loads")


def test_compiled_plug_ins_need_a_compiler_or_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "built_folder", lambda: Path("/there"))
    assert [each.found for each in compiled.plug_ins()] == ["their library is in /there"]
    monkeypatch.setattr(compiled, "built_folder", lambda: None)
    monkeypatch.setenv("CC", "nosuchcompiler")
    (without,) = compiled.plug_ins()
    assert "no C compiler" in without.found
    assert "apt-get install gcc" in without.advice
    monkeypatch.setenv("CC", "sh")
    (with_one,) = compiled.plug_ins()
    assert with_one.found.startswith("their library is built at the first use, with /")


def test_a_full_disk_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "not" / "there"))
    usage = SimpleNamespace(total=10 * MIB, used=9 * MIB, free=MIB)
    monkeypatch.setattr(doctor_backends.shutil, "disk_usage", lambda path: usage)
    first = next(doctor_backends.disks())
    assert (first.verdict, first.found) == (Verdict.WARNING, "1 of 10 MiB free")
    usage.free = 9000 * MIB
    assert next(doctor_backends.disks()).verdict is Verdict.OK


def test_few_processes_are_a_warning(cgroups: Path) -> None:
    (cgroups / "pids.max").write_text("100")
    processes = finding(examine([], {}), "processes")
    assert (processes.verdict, processes.found) == (Verdict.WARNING, "the server may have 100, with threads")
    (cgroups / "pids.max").write_text("max")
    assert "100" not in finding(examine([], {}), "processes").found
