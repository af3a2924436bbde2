"""Arguments of pb_utils: at each place what Triton's module takes there for texts, integers and numbers, as asked of Triton 2.51.
Its own examples name models by elements of BYTES."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from tpy_data.backends.python.worker import pb_utils
from tpy_data.backends.python.worker.pb_utils import context
from tpy_data.backends.python.worker.pb_utils.failures import TritonModelException
from tpy_data.backends.python.worker.pb_utils.response import InferenceResponseSender

Say = Callable[[Any], Any]

CAFE = "caf\u00e9"
TEXTS = [CAFE, np.str_(CAFE), CAFE.encode(), bytearray(CAFE.encode()), np.bytes_(CAFE.encode())]
NO_TEXTS = [None, 3, 2.5, ["a"], memoryview(b"a"), np.array("a")]


class Index:
    def __index__(self) -> int:
        return 1


class Whole:
    def __int__(self) -> int:
        return 1


class Real:
    def __float__(self) -> float:
        return 1.0

    def __str__(self) -> str:  # the same in every process of a test run
        return "Real"


class One(enum.IntEnum):
    ONE = 1


INTEGERS = [1, True, One.ONE, np.int64(1), np.uint8(1), np.bool_(True), np.array(1), np.float32(1), Index(), Whole()]
NO_INTEGERS = [None, "1", b"1", 1.0, np.float64(1), Real(), 1 << 64, -(1 << 63) - 1]
NUMBERS = [1, 1.0, True, np.float32(1), np.float64(1), np.int64(1), np.array(1.0), Index(), Real()]
NO_NUMBERS = [None, "1", b"1", bytearray(b"1"), 1j, Whole()]


class Heard:
    """The server, as far as metrics, logs and calls of the model go: it keeps the last thing that it was told."""

    phase = "execute"
    has_devices = False
    said: Any = None

    def hear(self, *said: Any) -> int:
        self.said = said if len(said) > 1 else said[0]
        return 1

    def log(self, level: str, text: str) -> None:
        self.hear(text)

    def family(self, name: str, description: str, kind: int) -> int:
        return self.hear(name, description)

    def metric(self, family: int, labels: Mapping[str, str], buckets: list[float]) -> int:
        return self.hear(dict(labels), buckets)

    def change(self, metric: int, operation: str, value: float) -> None:
        self.hear(value)

    def value(self, metric: int) -> float:
        return 0.0

    def close_family(self, family: int) -> None:
        pass

    def refusal(self, text: str) -> str:
        return text

    def is_model_ready(self, name: str, version: int | None) -> bool:
        return bool(self.hear(name if version is None else version))

    def load_model(self, name: str, config: str, files: Mapping[str, bytes]) -> None:
        self.hear(name, config, *files)

    def unload_model(self, name: str, *, unload_dependents: bool) -> None:
        self.hear(name)

    def infer(self, request: Any, *, streams: bool) -> Any:
        raise NotImplementedError

    def prepare_waiting_elsewhere(self) -> None:
        pass

    def send(self, response: Any, *, final: bool) -> None:
        self.hear(int(final))

    def is_cancelled(self) -> bool:
        return False


HEARD = Heard()
ARRAY = np.zeros(1, np.float32)
RESPONSE = pb_utils.InferenceResponse([])


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    context.set_for_thread(context.RunnerContext(".", HEARD.log, HEARD, HEARD))
    yield
    context.set_for_thread(None)


def ask(**arguments: Any) -> pb_utils.InferenceRequest:
    return pb_utils.InferenceRequest(**{"model_name": "m", **arguments})


def family(name: Any = "name", description: Any = "description", kind: str = "GAUGE") -> pb_utils.MetricFamily:
    return pb_utils.MetricFamily(name=name, description=description, kind=getattr(pb_utils.MetricFamily, kind))


def told(call: Callable[[], object]) -> Any:
    """The last thing that the server heard of a call."""
    HEARD.said = None
    call()
    return HEARD.said


def set_flags(value: Any) -> int:
    request = ask()
    request.set_flags(value)
    return request.flags()


def described(value: Any) -> Any:
    kept = []
    return told(lambda: kept.append(family(description=value)))[1]


def changed(kind: str, operation: str, value: Any) -> Any:
    held = family(kind=kind)
    metric = held.Metric(buckets=[1.0] if kind == "HISTOGRAM" else None)
    return told(lambda: getattr(metric, operation)(value))


TAKES_TEXT: dict[str, Say] = {
    "Tensor": lambda text: pb_utils.Tensor(text, ARRAY).name(),
    "from_dlpack": lambda text: pb_utils.Tensor.from_dlpack(text, pb_utils.Tensor("t", ARRAY).to_dlpack()).name(),
    "request_id": lambda text: ask(request_id=text).request_id(),
    "requested_output_names": lambda text: ask(requested_output_names=[text]).requested_output_names().pop(),
    "TritonError": lambda text: pb_utils.TritonError(text).message(),
    "log": lambda text: told(lambda: pb_utils.Logger.log(text)),
    "log_info": lambda text: told(lambda: pb_utils.Logger.log_info(text)),
    "log_warn": lambda text: told(lambda: pb_utils.Logger.log_warn(text)),
    "log_error": lambda text: told(lambda: pb_utils.Logger.log_error(text)),
    "log_verbose": lambda text: told(lambda: pb_utils.Logger.log_verbose(text)),
    "MetricFamily name": lambda text: told(lambda: family(text))[0],
    "MetricFamily description": described,
    "is_model_ready": lambda text: told(lambda: pb_utils.is_model_ready(text)),
    "load_model": lambda text: told(lambda: pb_utils.load_model(text))[0],
    "load_model config": lambda text: told(lambda: pb_utils.load_model("m", config=text))[1],
    "unload_model": lambda text: told(lambda: pb_utils.unload_model(text)),
}
"""Places of a text, and the text as others see it."""

TAKES_INTEGER: dict[str, Say] = {
    "model_version": lambda number: ask(model_version=number) and 1,
    "flags": lambda number: ask(flags=number).flags(),
    "set_flags": set_flags,
    "timeout": lambda number: ask(timeout=number).timeout(),
    "set_release_flags": lambda number: ask().set_release_flags(number) or 1,
    "send": lambda number: told(lambda: InferenceResponseSender(HEARD).send(RESPONSE, number)),
    "preferred_memory_type": lambda number: pb_utils.PreferredMemory(number).preferred_memory_type,
    "preferred_device_id": lambda number: pb_utils.PreferredMemory(0, number).preferred_device_id,
}

TAKES_NUMBER: dict[str, Say] = {
    "increment": lambda number: changed("COUNTER", "increment", number),
    "set": lambda number: changed("GAUGE", "set", number),
    "observe": lambda number: changed("HISTOGRAM", "observe", number),
    "buckets": lambda number: told(lambda: family(kind="HISTOGRAM").Metric(buckets=[number]))[1][0],
}

READABLE = (
    "TritonError",
    "log",
    "log_info",
    "log_warn",
    "log_error",
    "log_verbose",
    "MetricFamily description",
    "is_model_ready",
)
"""Texts that are shown, and names that may be unknown: bytes that are not UTF-8 become replacement characters."""


def named(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


@pytest.mark.parametrize("text", TEXTS, ids=named)
@pytest.mark.parametrize("place", TAKES_TEXT)
def test_texts_are_taken(place: str, text: Any) -> None:
    seen = TAKES_TEXT[place](text)
    assert (type(seen), seen) == (str, CAFE)


@pytest.mark.parametrize("wrong", NO_TEXTS, ids=named)
@pytest.mark.parametrize("place", TAKES_TEXT)
def test_other_values_for_texts_are_refused(place: str, wrong: Any) -> None:
    with pytest.raises(TypeError):
        TAKES_TEXT[place](wrong)


@pytest.mark.parametrize("place", TAKES_TEXT)
def test_bytes_that_are_not_utf_8(place: str) -> None:
    if place in READABLE:
        assert TAKES_TEXT[place](b"caf\xe9") == "caf\ufffd"
    else:
        with pytest.raises(UnicodeDecodeError):
            TAKES_TEXT[place](b"caf\xe9")


@pytest.mark.parametrize("number", INTEGERS, ids=named)
@pytest.mark.parametrize("place", TAKES_INTEGER)
def test_integers_are_taken(place: str, number: Any) -> None:
    seen = TAKES_INTEGER[place](number)
    assert (type(seen), seen) == (int, 1)


@pytest.mark.parametrize("wrong", NO_INTEGERS, ids=str)
@pytest.mark.parametrize("place", TAKES_INTEGER)
def test_other_values_for_integers_are_refused(place: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match="must be an int from"):
        TAKES_INTEGER[place](wrong)


@pytest.mark.parametrize("number", NUMBERS, ids=named)
@pytest.mark.parametrize("place", TAKES_NUMBER)
def test_numbers_are_taken(place: str, number: Any) -> None:
    seen = TAKES_NUMBER[place](number)
    assert (type(seen), seen) == (float, 1.0)


@pytest.mark.parametrize("wrong", NO_NUMBERS, ids=named)
@pytest.mark.parametrize("place", TAKES_NUMBER)
def test_other_values_for_numbers_are_refused(place: str, wrong: Any) -> None:
    with pytest.raises(TypeError, match="expected a number"):
        TAKES_NUMBER[place](wrong)


@pytest.mark.parametrize(
    ("given", "kept"), [(np.str_("a"), "a"), (True, 1), (One.ONE, 1), ((1 << 64) - 1, (1 << 64) - 1)], ids=named
)
def test_correlation_ids_are_plain(given: Any, kept: int | str) -> None:
    seen = ask(correlation_id=given).correlation_id()
    assert (type(seen), seen) == (type(kept), kept)


@pytest.mark.parametrize("wrong", [b"a", Index(), np.int64(1), None, 1.0], ids=named)
def test_other_correlation_ids_are_refused(wrong: Any) -> None:
    with pytest.raises(TritonModelException, match="Correlation ID must be integer or string"):
        ask(correlation_id=wrong)


@pytest.mark.parametrize("text", ["1", b"1", np.str_("1"), np.bytes_(b"1")], ids=named)
def test_versions_are_texts(text: Any) -> None:
    assert told(lambda: pb_utils.is_model_ready("m", text)) == 1


@pytest.mark.parametrize("text", [np.str_("a"), b"a"], ids=named)
def test_labels_are_texts(text: Any) -> None:
    assert told(lambda: family().Metric(labels={text: text}))[0] == {"a": "a"}


@pytest.mark.parametrize("kind", [list, tuple, deque, lambda tensors: np.array(tensors, object)])
def test_outputs_are_any_sequence(kind: Callable[[list[Any]], Any]) -> None:
    assert len(pb_utils.InferenceResponse(kind([pb_utils.Tensor("t", ARRAY)])).output_tensors()) == 1


@pytest.mark.parametrize("wrong", ["out", b"out"])
def test_one_name_is_not_a_list_of_names(wrong: Any) -> None:
    with pytest.raises(TypeError, match="requested_output_names must be a list of str"):
        ask(requested_output_names=wrong)
