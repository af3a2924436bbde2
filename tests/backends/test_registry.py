"""The registry: lookup, laziness, python-based backends, settings, closing."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tpy.backend import Backend, BackendSettings
from tpy.errors import Internal, InvalidArgument, Unavailable
from tpy.testing import FakeBackend
from tpy_data.registry import BackendRegistry, how_to_get

Factory = Callable[[BackendSettings], Backend]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str, Factory], None]:
    """Install a backend: a distribution whose entry point is the given factory."""
    site = tmp_path / "site"
    monkeypatch.syspath_prepend(site)

    def install(name: str, factory: Factory) -> None:
        module = f"backend_{name}"
        information = site / f"{module}-1.0.dist-info"
        information.mkdir(parents=True)
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        (information / "entry_points.txt").write_text(f"[tpy.backends]\n{name} = {module}:create\n")
        monkeypatch.setitem(sys.modules, module, type(sys)(module))
        monkeypatch.setattr(sys.modules[module], "create", factory, raising=False)
        importlib.invalidate_caches()

    return install


def test_backends_of_this_distribution_are_there() -> None:
    rows = {row.name: row for row in BackendRegistry().available()}
    assert {"dali", "identity", "onnxruntime", "openvino", "python", "pytorch"} <= rows.keys()
    assert rows["identity"].path.startswith("tpy-server ")


def test_an_unknown_backend_is_refused_with_what_there_is() -> None:
    with pytest.raises(InvalidArgument) as refusal:
        BackendRegistry().get("nonesuch")
    text = str(refusal.value)
    assert text.startswith(
        "unable to find backend library for backend 'nonesuch', try specifying runtime on the model configuration."
    )
    assert re.search("Available backends: .*identity, .*onnxruntime, .*python, ", text)


def test_a_typing_error_differs_from_a_missing_backend() -> None:
    available = ("identity", "onnxruntime", "python")
    assert how_to_get("pyton", available) == "Did you mean 'python'?"
    for name in ("pytorch", "tensorrt", "tensorflow", "openvino", "fastertransformer"):
        assert how_to_get(name, available).startswith(f"For '{name}', install a package"), name


@pytest.mark.parametrize("name", ["", ".", "..", "../identity", "a/b"])
def test_a_name_is_not_a_path(name: str, tmp_path: Path) -> None:
    (tmp_path / "inside" / "x").mkdir(parents=True)
    (tmp_path / "model.py").touch()
    (tmp_path / "inside" / "model.py").touch()
    with pytest.raises(InvalidArgument, match="unable to find backend library"):
        BackendRegistry(backend_directory=tmp_path / "inside").get(name)


def test_a_backend_is_created_once_on_first_use(install: Callable[[str, Factory], None]) -> None:
    made: list[BackendSettings] = []

    def create(settings: BackendSettings) -> Backend:
        made.append(settings)
        return FakeBackend()

    install("once", create)
    registry = BackendRegistry(backend_config={"once": {"a": "1"}, "other": {"b": "2"}}, global_config={"c": "3"})
    registry.available()
    assert made == []
    with ThreadPoolExecutor(4) as threads:
        backends = list(threads.map(lambda _: registry.get("once"), range(8)))
    assert len({id(backend) for backend in backends}) == 1
    assert made == [BackendSettings(name="once", config={"a": "1", "c": "3"})]


def test_a_slow_backend_holds_up_nobody_else(install: Callable[[str, Factory], None]) -> None:
    began, go_on = threading.Event(), threading.Event()

    def create(settings: BackendSettings) -> Backend:
        began.set()
        assert go_on.wait(10)
        return FakeBackend()

    install("slow", create)
    registry = BackendRegistry()
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(registry.get, "slow")
        assert began.wait(10)
        assert registry.get("identity").capabilities.name == "identity"
        assert not slow.done()
        go_on.set()
        assert isinstance(slow.result(), FakeBackend)


def test_a_factory_that_raises_is_reported_and_tried_again(install: Callable[[str, Factory], None]) -> None:
    outcomes: list[Backend | Exception] = [RuntimeError("no luck"), InvalidArgument("bad setting"), FakeBackend()]

    def create(settings: BackendSettings) -> Backend:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    install("moody", create)
    registry = BackendRegistry()
    with pytest.raises(Internal, match="backend 'moody' failed to start: RuntimeError: no luck"):
        registry.get("moody")
    with pytest.raises(InvalidArgument, match="bad setting"):
        registry.get("moody")
    assert isinstance(registry.get("moody"), FakeBackend)


def test_the_extra_to_install_is_named_without_onnxruntime(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("tpy_backends.onnxruntime.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Unavailable, match="pip install onnxruntime-gpu"):
        BackendRegistry().get("onnxruntime")


class TestPythonBased:
    """A folder `<name>/model.py` is a backend that the python backend's factory makes."""

    @pytest.fixture
    def made(self, monkeypatch: pytest.MonkeyPatch) -> list[BackendSettings]:
        """The arguments of the python backend's factory; a fake stands in for it."""
        made: list[BackendSettings] = []

        def create(settings: BackendSettings) -> Backend:
            made.append(settings)
            return FakeBackend()

        monkeypatch.setitem(sys.modules, "tpy_data.backends.python", type(sys)("tpy_data.backends.python"))
        monkeypatch.setattr(sys.modules["tpy_data.backends.python"], "create", create, raising=False)
        return made

    @staticmethod
    def folder(path: Path, *names: str) -> Path:
        for name in names:
            (path / name).mkdir(parents=True)
            (path / name / "model.py").touch()
        return path

    def test_it_is_found_in_every_folder_earlier_ones_first(self, tmp_path: Path, made: list[BackendSettings]) -> None:
        own = self.folder(tmp_path / "own", "triton_llm", "both")
        (own / "empty").mkdir()
        repository = self.folder(tmp_path / "repository", "both", "other")
        registry = BackendRegistry(
            backend_directory=own,
            repository_backend_directories=[tmp_path / "missing", repository],
            backend_config={"triton_llm": {"k": "v"}, "python": {"k": "python's", "p": "1"}},
            global_config={"g": "2", "p": "0"},
        )
        rows = {row.name: row.path for row in registry.available()}
        assert rows["triton_llm"] == str(own / "triton_llm")
        assert rows["both"] == str(own / "both")
        assert rows["other"] == str(repository / "other")
        assert "empty" not in rows
        registry.get("triton_llm")
        registry.get("other")
        assert made == [
            BackendSettings(name="triton_llm", config={"g": "2", "p": "1", "k": "v"}, backend_directory=own / "triton_llm"),
            BackendSettings(name="other", config={"g": "2", "p": "1", "k": "python's"}, backend_directory=repository / "other"),
        ]

    def test_an_entry_point_wins_and_the_loser_is_logged(self, tmp_path: Path) -> None:
        logged: list[tuple[str, str]] = []
        registry = BackendRegistry(
            backend_directory=self.folder(tmp_path, "identity"), log=lambda level, message: logged.append((level, message))
        )
        assert {row.name: row.path for row in registry.available()}["identity"].startswith("tpy-server ")
        assert [level for level, message in logged if str(tmp_path / "identity") in message] == ["warning"]

    def test_a_folder_that_appears_later_is_found(self, tmp_path: Path, made: list[BackendSettings]) -> None:
        registry = BackendRegistry(backend_directory=tmp_path)
        self.folder(tmp_path, "late")
        registry.get("late")
        assert [settings.name for settings in made] == ["late"]


def test_closing_closes_what_was_created_and_refuses_more(install: Callable[[str, Factory], None]) -> None:
    class Stubborn(FakeBackend):
        def close(self) -> None:
            raise RuntimeError("will not close")

    tame, stubborn = FakeBackend(), Stubborn()
    install("a_stubborn", lambda settings: stubborn)
    install("b_tame", lambda settings: tame)
    logged: list[str] = []
    registry = BackendRegistry(log=lambda level, message: logged.append(f"{level}: {message}"))
    registry.get("a_stubborn")
    registry.get("b_tame")
    registry.close()
    registry.close()
    assert tame.closed
    assert "error: backend 'a_stubborn' failed to close: RuntimeError: will not close" in logged
    with pytest.raises(Unavailable, match="stopping"):
        registry.get("b_tame")
