"""RunAhead: how many requests an instance is given at a time, and when it is asked for what it has done."""

from __future__ import annotations

from tpy.limits import RUN_HELD_NS_MAX, RUN_REQUESTS_MAX, RUN_SLICE_NS_MAX, STEADY_RUN_REQUESTS_MAX


class RunAhead:
    """The lengths of the instances' runs. They begin with one request. When a run was brief, the next may be twice as long; when
    it was not, as long as what was over in time. So a slow model gets one request at a time.

    An instance is *slow* when the request that it executed last took longer than a time slice. Between two requests it waits for
    the server. Where no other could do better, because it is the only one, it gets a *steady* run, if it can have one: a few
    requests of which it gives nothing back unasked, and of which it says at once what is over."""

    __slots__ = ("_able", "_break_up_ns", "_length", "_slow", "steady")

    def __init__(self) -> None:
        self._length: dict[int, int] = {}
        self._able: set[int] = set()
        self._slow: set[int] = set()
        self.steady: dict[int, None] = {}
        """Instances that have such a run, of which more than one request is not over."""
        self._break_up_ns: dict[int, int] = {}  # in order of time, because every run gets the same

    def add(self, instance: int, *, steady: bool) -> None:
        """A new instance; `steady`: it can have steady runs."""
        self._length[instance] = 1
        if steady:
            self._able.add(instance)

    def length(self, instance: int, waiting: int, members: int) -> tuple[int, bool]:
        """How many of the `waiting` requests to give to an idle instance, and whether as a steady run. At most its share among
        the `members`, because another one may be idle before this one comes to them."""
        if members == 1 and waiting > 1 and instance in self._slow:
            return min(waiting, STEADY_RUN_REQUESTS_MAX), True
        return min(self._length[instance], -(-waiting // members)), False

    def started(self, instance: int, now_ns: int, *, steady: bool) -> None:
        """The instance got a run of several requests."""
        if steady:
            self.steady[instance] = None
        else:
            self._break_up_ns[instance] = now_ns + RUN_HELD_NS_MAX

    def completed(self, instance: int, *, begun: int, whole: bool, brief: bool, took_ns: int) -> None:
        """A run is over: `begun` requests were executed, which was the `whole` run, the last of them in `took_ns`, and `brief`
        says that it kept to its time."""
        self._break_up_ns.pop(instance, None)
        self.steady.pop(instance, None)
        length = self._length.get(instance)
        if length is None:
            return  # it has left
        if instance in self._able and took_ns > RUN_SLICE_NS_MAX:
            self._slow.add(instance)
        else:
            self._slow.discard(instance)
        if not brief:
            self._length[instance] = max(1, begun - 1)
        elif whole:
            self._length[instance] = max(length, min(2 * begun, RUN_REQUESTS_MAX))

    def forget(self, instance: int) -> None:
        """The instance leaves."""
        del self._length[instance]
        self._able.discard(instance)
        self._slow.discard(instance)

    def shortened(self, instance: int, left: int) -> None:
        """So many requests of its run are not over."""
        if left < 2:
            self.steady.pop(instance, None)

    def take_steady(self) -> list[int]:
        """The instances with steady runs, which are to be broken up now."""
        instances = list(self.steady)
        self.steady.clear()
        return instances

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
