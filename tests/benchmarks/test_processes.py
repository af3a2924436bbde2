"""Reading /proc."""

from benchmarks.processes import Memory, ProcessTimes, family_of, joint_rise, parse_stat, parse_status, rise


def times(parent: int, session: int) -> ProcessTimes:
    return ProcessTimes(parent, session, 0.0)


def test_stat_is_read_behind_a_name_with_spaces_and_brackets() -> None:
    text = "42 (a (b) c) S 7 42 41 0 -1 4194304 100 0 0 0 150 50 9 9 20 0 3 0 12345 0 0"

    assert parse_stat(text) == ProcessTimes(parent=7, session=41, cpu_s=2.0)


def test_status_is_read_in_bytes() -> None:
    text = "Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\nRssShmem:\t  4 kB\n"

    assert parse_status(text) == Memory(resident=1 << 20, peak=2 << 20, shared=4096)


def test_a_process_without_memory_counts_as_zero() -> None:
    assert parse_status("Name:\tx\nState:\tZ (zombie)\n") == Memory(resident=0, peak=0, shared=0)


def test_a_family_is_descendants_and_members_of_the_session() -> None:
    processes = {1: times(0, 1), 10: times(1, 10), 11: times(10, 10), 12: times(11, 12), 13: times(1, 10), 20: times(1, 20)}

    assert family_of(10, processes) == (10, 11, 12, 13)


def test_a_family_of_one() -> None:
    assert family_of(5, {}) == (5,)


def test_memory_that_two_processes_share_counts_once() -> None:
    before = [Memory(resident=100, peak=100, shared=10), Memory(resident=50, peak=50, shared=10)]
    after = [Memory(resident=130, peak=160, shared=30), Memory(resident=70, peak=75, shared=30)]

    assert [rise(early, late) for early, late in zip(before, after, strict=True)] == [60, 25]
    assert joint_rise(before, after) == 60 + 25 - 20


def test_a_peak_below_what_was_resident_is_no_rise() -> None:
    assert rise(Memory(resident=100, peak=100, shared=0), Memory(resident=90, peak=95, shared=0)) == 0
