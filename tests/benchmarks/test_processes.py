"""Reading /proc."""

from benchmarks.processes import Memory, ProcessTimes, family_of, parse_stat, parse_status


def times(parent: int, session: int) -> ProcessTimes:
    return ProcessTimes(parent, session, 0.0)


def test_stat_is_read_behind_a_name_with_spaces_and_brackets() -> None:
    text = "42 (a (b) c) S 7 42 41 0 -1 4194304 100 0 0 0 150 50 9 9 20 0 3 0 12345 0 0"

    assert parse_stat(text) == ProcessTimes(parent=7, session=41, cpu_s=2.0)


def test_status_is_read_in_bytes() -> None:
    assert parse_status("Name:\tx\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n") == Memory(resident=1 << 20, peak=2 << 20)


def test_a_process_without_memory_counts_as_zero() -> None:
    assert parse_status("Name:\tx\nState:\tZ (zombie)\n") == Memory(resident=0, peak=0)


def test_a_family_is_descendants_and_members_of_the_session() -> None:
    processes = {1: times(0, 1), 10: times(1, 10), 11: times(10, 10), 12: times(11, 12), 13: times(1, 10), 20: times(1, 20)}

    assert family_of(10, processes) == (10, 11, 12, 13)


def test_a_family_of_one() -> None:
    assert family_of(5, {}) == (5,)
