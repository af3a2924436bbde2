"""Instances of other backends in worker processes: what they see, what they answer, and how they end."""

from __future__ import annotations

import importlib
import math
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
import pytest

from tests.e2e.waiting import wait_until
from tpy.backend import AnswerLater, InstanceFailure, InstancePlacement, Isolation, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelInput, ModelOutput, ModelParameter, TransactionPolicy
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy.messages import DataType, SequencePosition
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.testing.hosting import HostedInstance, HostedModel
from tpy.testing.requests import RecordingSender, SampleRequest, batch_of, request_of
from tpy.testing.resources import measure
from tpy_data.backends.isolated import IsolatedBackend
from tpy_data.registry import BackendRegistry

SITE = Path(__file__).parent / "site"
PLACEMENT = InstancePlacement(name="hostile_0", kind=InstanceKind.KIND_CPU)
UNHEALTHY = r"^Stub process 'hostile_0' is not healthy\."


class Hosted:
    """A model of the backend `hostile` with one instance, in a worker."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None, **parameters: str) -> None:
        self.logs: list[tuple[str, str]] = []
        self.metrics = CustomMetrics()
        decoupled = parameters.pop("decoupled", "") == "true"
        self.registry = BackendRegistry(backend_config={"hostile": dict(settings or {})})
        self.config = ModelConfig(
            name="hostile",
            backend="hostile",
            max_batch_size=4,
            input=(ModelInput(name="INPUT0", data_type=DataType.INT32, dims=(1,)),),
            output=(ModelOutput(name="OUTPUT0", data_type=DataType.INT32, dims=(1,)),),
            model_transaction_policy=TransactionPolicy(decoupled=decoupled),
            parameters={key: ModelParameter(string_value=text) for key, text in {"isolation": "process", **parameters}.items()},
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.context = ModelContext(
            name="hostile",
            version=7,
            generation=1,
            config=self.config,
            model_directory=folder,
            version_directory=folder,
            log=lambda level, text: self.logs.append((level, text)),
            metrics=self.metrics,
        )
        self.models: list[HostedModel] = []

    @property
    def backend(self) -> Any:
        return self.registry.for_model(self.config)

    def instance(self) -> HostedInstance:
        """Make it, as the server does: again, after one that has failed."""
        if not self.models:
            self.models.append(HostedModel(self.backend, self.context))
        return self.models[0].instance(PLACEMENT)

    def bare_instance(self) -> Any:
        """Without a thread of its own. Whoever has it closes it."""
        return self.backend.load(self.context).create_instance(PLACEMENT)

    def request(self, number: int = 3, sender: RecordingSender | None = None, **parameters: Any) -> SampleRequest:
        options = {key: parameters.pop(key) for key in ("id", "sequence", "timeout_us", "requested_outputs") if key in parameters}
        made = request_of(self.config, {"INPUT0": np.array([[number]], np.int32)}, sender=sender)
        return SampleRequest(inputs=made.inputs, sender=sender, parameters=parameters, **options)

    def logged(self, pattern: str) -> bool:
        return any(re.search(pattern, text) for _, text in self.logs)

    def close(self) -> None:
        for model in self.models:
            model.close()
        self.registry.close()


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Hosted]]:
    monkeypatch.syspath_prepend(SITE)
    made: list[Hosted] = []

    def host(settings: Mapping[str, str] | None = None, **parameters: str) -> Hosted:
        made.append(Hosted(tmp_path / f"{len(made)}" / "hostile", settings, **parameters))
        return made[-1]

    yield host
    for each in made:
        each.close()


Host = Callable[..., Hosted]


def value(result: Any) -> int:
    assert result.error is None, result.error
    return int(result.outputs[0].array[0, 0])


def test_a_request_arrives_whole(host: Host) -> None:
    hosted = host()
    instance = hosted.instance()
    sequence = SequencePosition(correlation_id="s", start=True, end=False)
    request = hosted.request(5, id="r1", timeout_us=9, sequence=sequence, requested_outputs=("OUTPUT0",), own="x")
    (result,) = instance.execute(request)
    assert value(result) == 5
    seen = dict(result.parameters)
    assert seen.pop("pid") not in (os.getpid(), None)
    assert seen == {
        "id": "r1",
        "timeout_us": 9,
        "batch_size": 1,
        "requested": "OUTPUT0",
        "sequence": "s True False",
        "writable": False,
        "cancelled": False,
    }
    (result,) = instance.execute(hosted.request(6))
    assert (result.parameters["requested"], result.parameters["sequence"]) == ("", "")
    assert hosted.logged(r"^hostile_0: hostile 7 of hostile in \d+$")
    families = {family.name: family for family in hosted.metrics.families()}
    (sample,) = families["hostile_requests"].samples
    assert (dict(sample.labels), sample.value) == ({"instance": "hostile_0"}, 2)


def test_parameters_that_are_not_finite_go_and_come_as_they_are(host: Host) -> None:
    """They arrived as None, and one in an answer ended the instance."""
    hosted = host()
    (result,) = hosted.instance().execute(
        hosted.request(answer="parameters", large=math.inf, small=-math.inf, none=math.nan, text="null")
    )
    assert result.error is None, result.error
    seen = dict(result.parameters)
    assert math.isnan(cast(float, seen.pop("none")))
    assert seen == {"answer": "parameters", "large": math.inf, "small": -math.inf, "text": "null"}


def test_the_library_is_not_imported_by_the_server(host: Host) -> None:
    hosted = host()
    assert isinstance(hosted.backend, IsolatedBackend)
    assert hosted.backend.capabilities.default_count == 2
    assert hosted.backend.capabilities is hosted.backend.capabilities
    incomplete = msgspec.structs.replace(hosted.config, max_batch_size=0)
    completed = hosted.backend.auto_complete(msgspec.structs.replace(hosted.context, config=incomplete))
    assert completed == hosted.config
    hosted.instance()
    assert "tpy_hostile" not in sys.modules


@pytest.mark.parametrize(
    ("how", "ended"),
    [
        ("segfault", "was ended by SIGSEGV"),
        ("abort", "was ended by SIGABRT"),
        ("exit", "exited with status 3"),
        ("out of memory", "was ended by SIGKILL"),
    ],
)
def test_a_death_in_execute_ends_one_instance_and_says_how(host: Host, how: str, ended: str) -> None:
    hosted = host()
    instance = hosted.instance()
    assert value(instance.execute(hosted.request(1))[0]) == 1
    with pytest.raises(InstanceFailure, match=UNHEALTHY):
        instance.execute(hosted.request(execute=how))
    assert hosted.logged(ended)
    instance.close()
    again = hosted.instance()
    assert value(again.execute(hosted.request(2))[0]) == 2


def test_exceptions_in_execute_fail_the_batch_and_keep_the_instance(host: Host) -> None:
    hosted = host()
    instance = hosted.instance()
    pid = instance.execute(hosted.request())[0].parameters["pid"]
    text = "^Failed to process the request\\(s\\) for model 'hostile_0', message: ValueError: told to raise$"
    with pytest.raises(Internal, match=text):
        instance.execute(hosted.request(1), hosted.request(execute="raise"))
    assert hosted.logged(r"execute failed \(model 'hostile'\): ValueError: told to raise\nTraceback")
    with pytest.raises(Internal, match=r"message: SystemExit: 3$"):
        instance.execute(hosted.request(execute="sys.exit"))
    with pytest.raises(InvalidArgument, match=r"^told to refuse$"):
        instance.execute(hosted.request(execute="refuse"))
    with pytest.raises(Internal, match=r"^instance 'hostile_0' gave output 'OUTPUT0' as INT32 with dtype complex64$"):
        instance.execute(hosted.request(answer="wrong"))
    refused, copied = instance.execute(hosted.request(answer="error"), hosted.request(4))
    assert isinstance(refused.error, Unavailable)
    assert refused.error.message == "told to be away"
    assert value(copied) == 4
    assert copied.parameters["pid"] == pid


def test_an_instance_that_ends_by_itself_in_a_batch_says_why(host: Host) -> None:
    hosted = host()
    with pytest.raises(InstanceFailure, match=r"^told to end$"):
        hosted.instance().execute(hosted.request(execute="end"))
    assert hosted.logged(r"\(told to end\)")


def test_an_instance_that_gives_itself_up_says_why(host: Host) -> None:
    hosted = host()
    with pytest.raises(InstanceFailure, match=r"^the device is gone$"):
        hosted.instance().execute(hosted.request(execute="lose"))


def test_a_hang_ends_at_the_time_limit(host: Host) -> None:
    hosted = host(TPY_EXECUTE_TIMEOUT_SECONDS="0.3")
    with pytest.raises(InstanceFailure, match=UNHEALTHY + " It was ended: execute did not return within 0.3 s"):
        hosted.instance().execute(hosted.request(execute="hang"))


def test_memory_that_is_leaked_is_the_workers_and_goes_with_it(host: Host) -> None:
    hosted = host()
    instance = hosted.instance()
    pid = int(instance.execute(hosted.request())[0].parameters["pid"])  # type: ignore[call-overload]
    before, own_before = resident_bytes(pid), resident_bytes(os.getpid())
    for _ in range(4):
        instance.execute(hosted.request(execute="leak"))
    assert resident_bytes(pid) - before > 100_000_000
    assert resident_bytes(os.getpid()) - own_before < 50_000_000
    instance.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("step", ["load", "create_instance"])
@pytest.mark.parametrize(
    ("how", "kind", "text"),
    [
        ("segfault", Internal, UNHEALTHY + " It was ended by SIGSEGV while loading the model"),
        ("exit", Internal, UNHEALTHY + " It exited with status 3 while loading the model"),
        ("raise", Internal, "^ValueError: told to raise$"),
        ("refuse", InvalidArgument, "^told to refuse$"),
    ],
)
def test_what_goes_wrong_while_loading_is_the_reason(host: Host, step: str, how: str, kind: type[TpyError], text: str) -> None:
    before = measure().child_processes
    hosted = host(**{step: how})
    with pytest.raises(kind, match=text):
        hosted.instance()
    hosted.close()
    wait_until(lambda: measure().child_processes <= before)


def test_a_hang_while_loading_is_given_up(host: Host) -> None:
    hosted = host({"initialize-timeout-seconds": "3"}, load="hang")
    with pytest.raises(Internal, match="Stub process 'hostile_0' is not ready: initialize did not return within 3 s"):
        hosted.instance()


def test_what_goes_wrong_before_loading_is_the_reason(host: Host) -> None:
    with pytest.raises(Internal, match=r"It was ended by SIGABRT while loading the model"):
        host({"create": "abort"}).backend.capabilities  # noqa: B018  # it asks a worker
    with pytest.raises(InvalidArgument, match=r"^told to refuse$"):
        host({"create": "refuse"}).backend.capabilities  # noqa: B018
    hosted = host(auto_complete="segfault")
    with pytest.raises(Internal, match=r"It was ended by SIGSEGV while loading the model"):
        hosted.backend.auto_complete(hosted.context)
    hosted = host(auto_complete="raise")
    with pytest.raises(Internal, match=r"^ValueError: told to raise$"):
        hosted.backend.auto_complete(hosted.context)


@pytest.mark.parametrize("how", ["segfault", "exit", "raise"])
@pytest.mark.parametrize("step", ["close", "unload"])
def test_a_death_at_the_close_is_logged(host: Host, step: str, how: str) -> None:
    hosted = host(**{step: how})
    instance = hosted.instance()
    pid = int(instance.execute(hosted.request())[0].parameters["pid"])  # type: ignore[call-overload]
    instance.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    logged = {"segfault": "was ended by SIGSEGV", "exit": "exited with status 3", "raise": "close failed"}
    assert hosted.logged(logged[how])


def test_a_hang_at_the_close_is_ended(host: Host) -> None:
    hosted = host({"finalize-timeout-seconds": "0.3"}, close="hang")
    hosted.instance().close()
    assert hosted.logged("did not finalize within 0.3 s and was ended by SIGTERM")


def test_responses_of_a_decoupled_model(host: Host) -> None:
    hosted = host(decoupled="true")
    instance = hosted.instance()
    sender, other = RecordingSender(), RecordingSender()
    assert instance.execute(hosted.request(100, sender), hosted.request(0, other)) == ()
    assert sender.finished.wait(30)
    assert other.finished.wait(30)
    assert [value(result) for result, _ in sender.sent[:-1]] == list(range(100))
    assert (sender.sent[-1], other.sent) == ((None, True), [(None, True)])
    failed = RecordingSender()
    instance.execute(hosted.request(1, failed, execute="refuse"))
    assert failed.finished.wait(30)
    ((result, final),) = failed.sent
    assert final
    assert isinstance(result.error, InvalidArgument)
    lost = RecordingSender()
    with pytest.raises(InstanceFailure, match=UNHEALTHY):
        instance.execute(hosted.request(1, lost, execute="segfault"))


def test_an_answer_that_comes_later(host: Host) -> None:
    hosted = host()
    now, later = hosted.instance().execute(hosted.request(1), hosted.request(2, answer="later"))
    assert value(now) == 1
    assert isinstance(later, AnswerLater)
    sender = RecordingSender()
    later.begin(sender)
    assert sender.finished.wait(30)
    assert value(sender.sent[0][0]) == 2


def test_readiness_is_the_instances(host: Host) -> None:
    hosted = host()
    with closing(hosted.bare_instance()) as instance:
        assert instance.has_readiness_check
        assert instance.check_ready(5)
        instance.execute(batch_of([hosted.request(answer="unready")]))
        assert not instance.check_ready(5)


def test_killed_while_it_is_idle(host: Host) -> None:
    hosted = host()
    with closing(hosted.bare_instance()) as instance:
        os.kill(instance.pid, signal.SIGKILL)
        poller = select.poll()
        poller.register(instance.end_fileno(), select.POLLIN)
        assert poller.poll(10_000)
        with pytest.raises(InstanceFailure, match=UNHEALTHY) as failure:
            instance.execute(batch_of([hosted.request()]))
        assert not failure.value.begun


def test_isolation_by_parameter_by_settings_and_by_the_factory(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def backend(parameter: str, settings: Mapping[str, str]) -> object:
        hosted = host(settings, isolation=parameter)
        return hosted.backend

    assert isinstance(backend("process", {}), IsolatedBackend)
    assert isinstance(backend("", {"isolation": "process"}), IsolatedBackend)
    assert not isinstance(backend("thread", {"isolation": "process"}), IsolatedBackend)
    assert not isinstance(backend("", {}), IsolatedBackend)
    module = importlib.import_module("tpy_hostile")
    monkeypatch.setattr(module.create, "default_isolation", Isolation.PROCESS, raising=False)
    assert isinstance(backend("", {}), IsolatedBackend)
    assert not isinstance(backend("thread", {}), IsolatedBackend)
    with pytest.raises(
        InvalidArgument, match=r"^parameter isolation of model 'hostile' is 'jail', expected 'process' or 'thread'$"
    ):
        backend("jail", {})
    with pytest.raises(InvalidArgument, match=r"^--backend-config=hostile,isolation is 'jail', expected 'process' or 'thread'$"):
        backend("", {"isolation": "jail"})
    del sys.modules["tpy_hostile"]
