"""RunAhead: how many requests an instance is given at a time, and when it is asked for what it has done."""

from __future__ import annotations

from tpy.limits import RUN_HELD_NS_MAX, RUN_REQUESTS_MAX


class RunAhead:
    """The lengths of the instances' runs. They begin with one request. When a run was brief, the next may be twice as long; when
    it was not, as long as what was over in time. So a slow model gets one request at a time."""

    __slots__ = ("_break_up_ns", "_length")

    def __init__(self) -> None:
        self._length: dict[int, int] = {}
        self._break_up_ns: dict[int, int] = {}  # in order of time, because every run gets the same

    def add(self, instance: int) -> None:
        """A new instance."""
        self._length[instance] = 1

    def length(self, instance: int, waiting: int, members: int) -> int:
        """How many of the `waiting` requests to give to an idle instance: at most its share among the `members`, because another
        one may be idle before this one comes to them."""
        return min(self._length[instance], -(-waiting // members))

    def started(self, instance: int, now_ns: int) -> None:
        """The instance got a run of several requests."""
        self._break_up_ns[instance] = now_ns + RUN_HELD_NS_MAX

    def completed(self, instance: int, *, begun: int, whole: bool, brief: bool) -> None:
        """A run is over: `begun` requests were executed, which was the `whole` run, and `brief` says that it kept to its time."""
        self._break_up_ns.pop(instance, None)
        length = self._length.get(instance)
        if length is None:
            return  # it has left
        if not brief:
            self._length[instance] = max(1, begun - 1)
        elif whole:
            self._length[instance] = max(length, min(2 * begun, RUN_REQUESTS_MAX))

    def forget(self, instance: int) -> None:
        """The instance leaves."""
        del self._length[instance]

    def first_ns(self) -> int | None:
        """When the next run is to be broken up; None: there is none."""
        return next(iter(self._break_up_ns.values()), None)

    def pop_due(self, now_ns: int) -> int | None:
        """An instance whose run is to be broken up now; None: there is none."""
        for instance, at_ns in self._break_up_ns.items():
            if at_ns > now_ns:
                break
            del self._break_up_ns[instance]
            return instance
        return None
