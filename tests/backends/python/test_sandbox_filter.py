"""The filter for system calls in a sandbox, on all machines; and kernels that lack parts of a sandbox."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import pytest

from tpy_data.backends.python.worker import sandbox


def test_the_parts_of_older_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    class Libc:
        def syscall(self, *arguments: object) -> int:
            return self.version

        version = 0

    libc = Libc()
    monkeypatch.setattr(sandbox.ctypes, "CDLL", lambda name, use_errno: libc)
    monkeypatch.setattr(sandbox.platform, "machine", lambda: "riscv64")
    found = {}
    for libc.version in (-1, 2, 3, 6):
        found[libc.version] = [each.partition(" (")[0] for each in sandbox.missing_parts()]
    assert found == {
        -1: ["files", "signals", "system calls"],
        2: ["files", "signals", "system calls"],
        3: ["signals", "system calls"],
        6: ["system calls"],
    }
    with pytest.raises(sandbox.SandboxError, match="this machine lacks system calls"):
        sandbox.enter({"required": True})


def run(program: list[sandbox.Instruction], architecture: int, number: int, argument: int = 0) -> int:
    """The answer of a filter, by a machine for the few instructions that there are."""
    fields = {0: number, 4: architecture, 16: argument}
    accumulator, at = 0, 0
    while True:
        operation, holds, fails, operand = program[at]
        match operation:
            case 0x20:
                accumulator, jump = fields[operand], 0
            case 0x15:
                jump = holds if accumulator == operand else fails
            case 0x35:
                jump = holds if accumulator >= operand else fails
            case 0x45:
                jump = holds if accumulator & operand else fails
            case 0x06:
                return operand
            case _:
                raise AssertionError(operation)
        at += 1 + jump


ALLOWED = 0x7FFF0000
CALLS = {name: (numbers, error) for error, calls in sandbox.CALLS_REFUSED.items() for name, numbers in calls.items()}


@pytest.mark.parametrize(("machine", "architecture", "column"), [("x86_64", 0xC000003E, 0), ("aarch64", 0xC00000B7, 1)])
@pytest.mark.parametrize("network", [False, True])
@pytest.mark.parametrize("programs", [False, True])
def test_the_filter(machine: str, architecture: int, column: int, network: bool, programs: bool) -> None:
    """Each number against the tables, for all numbers that there are."""
    program = sandbox.filter_program(machine, network=network, programs=programs)
    assert len(program) < 4096
    wanted = {numbers[column]: 0x50000 | error for numbers, error in CALLS.values() if numbers[column] is not None}
    for refused, calls in ((not network, sandbox.NETWORK_CALLS), (not programs, sandbox.PROGRAM_CALLS)):
        wanted |= {numbers[column]: 0x50000 | errno.EACCES for numbers in calls.values() if refused}
    conditional = {name: numbers[column] for name, numbers in sandbox.CONDITIONAL_CALLS.items()}
    for number in range(600):
        if number not in conditional.values():
            assert run(program, architecture, number) == wanted.get(number, ALLOWED), number
    assert run(program, architecture, conditional["clone"], 0x11) == ALLOWED
    assert run(program, architecture, conditional["clone"], 0x10000011) == 0x50000 | errno.EPERM
    assert run(program, architecture, conditional["prlimit64"], 0) == ALLOWED
    assert run(program, architecture, conditional["prlimit64"], 1) == 0x50000 | errno.EPERM
    assert run(program, architecture, 0x40000000 + 41) == 0x50000 | errno.ENOSYS
    assert run(program, 0x40000003, 41) == 0x80000000


@pytest.mark.skipif(not Path("/usr/include/asm-generic/unistd.h").exists(), reason="no headers of the kernel")
def test_the_numbers_of_system_calls() -> None:
    """Against the kernel's headers, those that they have."""
    tables = (*sandbox.CALLS_REFUSED.values(), sandbox.NETWORK_CALLS, sandbox.PROGRAM_CALLS, sandbox.CONDITIONAL_CALLS)
    for column, header in enumerate(("x86_64-linux-gnu/asm/unistd_64.h", "asm-generic/unistd.h")):
        text = Path("/usr/include", header).read_text() if Path("/usr/include", header).exists() else ""
        numbers = {name: int(number) for name, number in re.findall(r"define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
        ours = {name: each[column] for table in tables for name, each in table.items() if each[column] is not None}
        assert {name: number for name, number in ours.items() if numbers.get(name, number) != number} == {}
