"""--host-policy: what is taken, Triton's words for what is not, and threads that are bound."""

from __future__ import annotations

import os
import re
import threading

import pytest

from tpy.backend import HostPolicy, bound
from tpy.backend.host_policy import ANYWHERE, bind, parse_host_policies
from tpy.errors import Internal, InvalidArgument, TpyError, Unsupported

CORES = sorted(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("texts", "policies"),
    [
        ([], {}),
        (["cpu,cpu-cores=0-3"], {"cpu": HostPolicy(cpu_cores=(0, 1, 2, 3))}),
        (["a,cpu-cores=2-2,0-1"], {"a": HostPolicy(cpu_cores=(0, 1, 2))}),
        (
            ["a,cpu-cores=0-1", "a,numa-node=1", "b,numa-node=0"],
            {"a": HostPolicy(cpu_cores=(0, 1), numa_node=1), "b": HostPolicy(numa_node=0)},
        ),
        (["a,cpu-cores=0-1", "a,cpu-cores=3-3"], {"a": HostPolicy(cpu_cores=(3,))}),
    ],
)
def test_policies_by_name(texts: list[str], policies: dict[str, HostPolicy]) -> None:
    assert parse_host_policies(texts) == policies


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("cpu", InvalidArgument, "--host-policy option format is '<policy name>,<setting>=<value>'. Got cpu"),
        ("cpu-cores=0-1", InvalidArgument, "--host-policy option format is '<policy name>,<setting>=<value>'. Got cpu-cores=0-1"),
        (
            ",cpu-cores=0-1",
            InvalidArgument,
            "--host-policy option format is '<policy name>,<setting>=<value>'. Got ,cpu-cores=0-1",
        ),
        (
            "cpu,cpu-cores=",
            InvalidArgument,
            "--host-policy option format is '<policy name>,<setting>=<value>'. Got cpu,cpu-cores=",
        ),
        (
            "cpu,nice=3",
            Unsupported,
            "Unsupported host policy setting 'nice' is specified, supported settings are 'numa-node', 'cpu-cores'",
        ),
        (
            "cpu,cpu-cores=3",
            InvalidArgument,
            "host policy setting 'cpu-cores' format is '<lower_cpu_core_id>-<upper_cpu_core_id>'. Got 3",
        ),
        ("cpu,cpu-cores=a-3", InvalidArgument, "Parsing 'cpu-cores' value: Can't parse 'a' to integer"),
        ("cpu,cpu-cores=0-", InvalidArgument, "Parsing 'cpu-cores' value: Can't parse '' to integer"),
        ("cpu,cpu-cores=3-1", InvalidArgument, "host policy setting 'cpu-cores' names no core: '3-1'"),
        ("cpu,cpu-cores=0-999999999", InvalidArgument, "host policy setting 'cpu-cores': expected at most 1023, got 999999999"),
        ("cpu,numa-node=x", InvalidArgument, "Parsing 'numa-node' value: Can't parse 'x' to integer"),
        ("cpu,numa-node=64", InvalidArgument, "host policy setting 'numa-node': expected at most 63, got 64"),
    ],
)
def test_what_is_refused(text: str, kind: type[TpyError], message: str) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        parse_host_policies([text])


def test_a_thread_is_bound_alone_and_what_it_starts_inherits() -> None:
    seen: list[set[int]] = []

    def work() -> None:
        bind(HostPolicy(cpu_cores=(CORES[0],)))
        inner = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        inner.start()
        inner.join()
        seen.append(os.sched_getaffinity(0))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [{CORES[0]}] * 2
    assert os.sched_getaffinity(0) == set(CORES)


def test_bound_for_a_while() -> None:
    with bound(HostPolicy(cpu_cores=(CORES[-1],))):
        assert os.sched_getaffinity(0) == {CORES[-1]}
    with bound(ANYWHERE):
        assert os.sched_getaffinity(0) == set(CORES)
    assert os.sched_getaffinity(0) == set(CORES)


def test_cores_and_nodes_that_are_not_there() -> None:
    with (
        pytest.raises(Internal, match="Unable to set NUMA thread affinity: Invalid argument"),
        bound(HostPolicy(cpu_cores=(1023,))),
    ):
        pass
    with pytest.raises(Internal, match="Unable to set NUMA memory policy: "), bound(HostPolicy(numa_node=63)):
        pass
    assert os.sched_getaffinity(0) == set(CORES)
