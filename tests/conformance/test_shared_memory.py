"""Every recorded request about shared memory with clients, sent to `tpy serve`: the answer, and what is in the output's segment
then, is Triton's, or a deviation that was meant. With frontend processes it is the same."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.e2e.server import ServerProcess

from .repository import build
from .shared_memory_cases import MODELS, OUTPUT_BYTES, Written, http_cases, segments
from .shared_memory_grpc_cases import grpc_cases
from .shared_memory_record import record_grpc, record_http

RECORDED = {
    protocol: msgspec.json.decode(
        (Path(__file__).parent / "transcripts" / f"shared_memory_{protocol}.json").read_bytes(), type=dict[str, Written]
    )
    for protocol in ("http", "grpc")
}

NO_KEY = r"cannot register shared memory region 'bad' - invalid shm key '/?'"
OWN_KEY = (
    r"cannot register shared memory region '\w+' with key '/*triton_\w+' as the key contains the reserved prefix 'triton_\w+_'"
)
TOO_SMALL = (
    r"shared memory size specified with the request for output 'OUTPUT0' \(0 bytes\) should be at least 16 bytes to hold.*"
)
MISMATCH = r"\[request id: <id_unknown>\] input byte size mismatch for input 'INPUT0' for model 'ident'. Expected 16, got 0"
INVALID_ARGS = "failed to register shared memory region 'bad': invalid args"

NEWER: dict[str, tuple[object, str]] = {
    # As the newest Triton (2.73) answers, whose source is public. 2.51 wraps around at 64 bits, takes a size of 0 for -1, and
    # opens keys of its own.
    "http: register an offset that overflows": (400, INVALID_ARGS),
    "http: register offset and size that overflow to nothing": (400, INVALID_ARGS),
    "http: register an empty key": (400, NO_KEY),
    "http: register a slash as key": (400, NO_KEY),
    "http: register a key of the server's own behind slashes": (400, OWN_KEY),
    "http: register a key of the server's own": (400, OWN_KEY),
    "http: infer into no bytes": (500, TOO_SMALL),
    "http: infer into no bytes, explicitly": (500, TOO_SMALL),
    "http: infer input of no size": (400, MISMATCH),
    "http: infer input of offset and size that overflow": (
        400,
        r"Integer overflow detected: byte_size \(\d+\) \+ offset \(16\) exceeds maximum value \(\d+\) for region 'in'",
    ),
    "grpc: register nothing": ("INVALID_ARGUMENT", NO_KEY),
    "grpc: register no key": ("INVALID_ARGUMENT", NO_KEY),
    "grpc: register offset and size that overflow to nothing": ("INVALID_ARGUMENT", INVALID_ARGS),
    "grpc: register a key of the server's own": ("INVALID_ARGUMENT", OWN_KEY),
    "grpc: infer into no bytes": ("INTERNAL", TOO_SMALL),
    "grpc: infer input of the size 0": ("INVALID_ARGUMENT", MISMATCH),
}

DEVIATIONS: dict[str, tuple[object, str]] = {
    # Triton's key ends at the NUL.
    "http: register a key with NUL": (500, "Unable to open shared memory region: '/PREFIX_spare\0x'"),
    "grpc: register a key with NUL": ("INTERNAL", "Unable to open shared memory region: '/PREFIX_spare\0x'"),
    # A long name is cut in the text.
    "http: register a very long key": (500, r"Unable to open shared memory region: '/k+\.\.\. \(\d+ more characters\)'"),
    # Without a name nobody could forget it alone.
    "grpc: register without a name": ("INVALID_ARGUMENT", "'region name' is necessary to register system shared memory region"),
    "grpc: register cuda, nothing": ("INVALID_ARGUMENT", "'region name' is necessary to register cuda shared memory region"),
    # Each output once, as everywhere else.
    "http: infer output twice": (400, r"\[request id: <id_unknown>\] output 'OUTPUT0' already exists in request"),
}

SPECIAL = {
    "http: register a key again",
    "http: register an encoded name",
    "http: status of an encoded name",
    "http: status of all",
    "http: infer of the second page",
    "http: infer an empty output",
    "http: infer an empty input",
    "http: infer size and offset without a region",
    "http: infer output size without a region",
    "http: infer flags",
    "grpc: status of all",
}


@cache
def _answers(protocol: str, processes: int, folder: Path) -> dict[str, Written]:
    build(folder)
    load = [f"--load-model={model}" for model in MODELS]
    flags = ("--model-control-mode=explicit", "--allow-client-shm=true", f"--frontend-processes={processes}", *load)
    with ServerProcess(*flags, repositories=[folder]) as server:
        return record_http(server.http) if protocol == "http" else record_grpc(server.grpc)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    yield tmp_path_factory.mktemp("repositories")
    _answers.cache_clear()


def _ours(folder: Path, protocol: str, processes: int = 0) -> dict[str, Written]:
    return _answers(protocol, processes, folder / f"{protocol}{processes}")


def _said(answer: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in answer.items() if key != "headers"}


CASES = [(protocol, name) for protocol, recorded in RECORDED.items() for name in recorded]


def test_the_transcripts_are_of_these_cases() -> None:
    with segments() as made:
        assert list(RECORDED["http"]) == [case.name for case in http_cases(made)]
        assert list(RECORDED["grpc"]) == [case.name for case in grpc_cases(made)]
    assert {*NEWER, *DEVIATIONS, *SPECIAL} <= {f"{protocol}: {name}" for protocol, name in CASES}


@pytest.mark.parametrize(("protocol", "name"), [case for case in CASES if ": ".join(case) not in SPECIAL], ids=": ".join)
def test_answer(folder: Path, protocol: str, name: str) -> None:
    ours, triton = _ours(folder, protocol)[name], RECORDED[protocol][name]
    meant = {**NEWER, **DEVIATIONS}.get(f"{protocol}: {name}")
    if meant is not None:
        status, text = meant
        said = ours.answer["json"]["error"] if protocol == "http" else ours.answer["details"]
        assert ours.answer["status"] == status
        assert re.fullmatch(text, said), said
        assert ours.output == ""
        return
    expected = _said(triton.answer)
    if expected["status"] == 500 and re.search("JSON|non-existing", expected["json"]["error"]):
        expected["status"] = 400  # as everywhere else: what is malformed is the caller's fault
    assert _said(ours.answer) == expected
    assert ours.output == triton.output


@pytest.mark.parametrize("protocol", RECORDED)
def test_frontend_processes_answer_the_same(folder: Path, protocol: str) -> None:
    """Regions that one process registers are known to all; requests go to whichever takes the connection."""
    here, there = _ours(folder, protocol), _ours(folder, protocol, 2)
    assert {name: (here[name], there[name]) for name in here if here[name] != there[name]} == {}


def test_a_key_can_be_registered_under_two_names(folder: Path) -> None:
    """2.51 uses a descriptor that it had closed. It also adds a region's offset twice, and reads what lies behind its map."""
    assert _ours(folder, "http")["register a key again"].answer["status"] == 200
    page = _ours(folder, "http")["infer of the second page"]
    assert page.output == _ours(folder, "http")["infer in and out"].output
    assert RECORDED["http"]["infer of the second page"].output == "AAc="


def test_names_are_decoded(folder: Path) -> None:
    """tritonclient encodes them in paths, and not in requests: with Triton such a region cannot be used."""
    ours = _ours(folder, "http")
    assert ours["register an encoded name"].answer["status"] == 200
    assert ours["status of an encoded name"].answer["json"][0]["name"] == "a bü"


@pytest.mark.parametrize("protocol", RECORDED)
def test_the_status_of_all_is_sorted_by_name(folder: Path, protocol: str) -> None:
    ours, triton = _ours(folder, protocol)["status of all"].answer, RECORDED[protocol]["status of all"].answer
    if protocol == "grpc":
        shown, recorded = ours["responses"][0]["regions"], triton["responses"][0]["regions"]
    else:
        assert [row["name"] for row in ours["json"]] == sorted(row["name"] for row in ours["json"])
        shown, recorded = ({row["name"]: row for row in answer["json"]} for answer in (ours, triton))
    refused = {"nul", "own", "bad", ""}
    assert {name: row for name, row in recorded.items() if name not in refused} == {
        name: row for name, row in shown.items() if name not in {"again", "a bü"}
    }


def test_tensors_without_elements_need_no_bytes(folder: Path) -> None:
    """2.51 refuses a size of 0 over HTTP."""
    for name in ("infer an empty output", "infer an empty input"):
        answer = _ours(folder, "http")[name].answer
        assert answer["status"] == 200, answer
        assert answer["json"]["outputs"][0]["shape"] == [1, 0]


def test_sizes_and_offsets_without_a_region_mean_nothing(folder: Path) -> None:
    """Over HTTP they are not looked at; Triton looks at their types."""
    for name in ("infer size and offset without a region", "infer output size without a region"):
        assert _ours(folder, "http")[name].answer["status"] == 200


def test_bytes_of_flags_are_zero_or_one(folder: Path) -> None:
    assert (_ours(folder, "http")["infer flags"].output, RECORDED["http"]["infer flags"].output) == ("AAE=", "AAc=")


def test_the_output_segment_is_as_large_as_the_cases_say() -> None:
    with segments() as made:
        assert len(made.output()) == OUTPUT_BYTES
