"""SequenceIds: which correlation ids are live, and what becomes of a request of another one."""

from __future__ import annotations

from collections import OrderedDict

from tpy.errors import InvalidArgument, Unavailable
from tpy.limits import SEQUENCES_LOST_REMEMBERED_MAX
from tpy.messages import SequencePosition
from tpy_data.schedulers.core.contract import Ticket
from tpy_data.schedulers.core.sequence_line import SequenceLine
from tpy_data.schedulers.core.sequence_options import SequenceOptions


class SequenceIds:
    """`live` has the line of each id that takes further requests. Ids that are lost are remembered, as many as the limit says."""

    __slots__ = ("_iterative", "_lost", "_made_up", "_model_name", "live")

    def __init__(self, options: SequenceOptions) -> None:
        self.live: dict[int | str, SequenceLine] = {}
        self._model_name = options.model_name
        self._iterative = options.iterative
        self._lost: OrderedDict[int | str, None] = OrderedDict()
        self._made_up = 0

    def position(self, ticket: Ticket) -> SequencePosition:
        """The position of the ticket in its sequence; in an iterative one it may leave that to us.

        Raises InvalidArgument for one that is in no sequence, or in one that has not begun, or that has more rows than one;
        Unavailable for one whose sequence was lost."""
        if ticket.batch_size > 1:
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify batch-size 1 due to requirements of sequence "
                "batcher"
            )
        position = ticket.sequence
        if position is None or not position.correlation_id:
            return self._make_up()
        if not position.start and position.correlation_id not in self.live:
            self._refuse_unknown(position.correlation_id)
        return position

    def lose(self, line: SequenceLine) -> None:
        """The line is lost with its instance; its id is remembered if a further request could still have come."""
        if self.live.get(line.correlation_id) is line:
            self._lost[line.correlation_id] = None
            if len(self._lost) > SEQUENCES_LOST_REMEMBERED_MAX:
                self._lost.popitem(last=False)

    def begin(self, line: SequenceLine) -> None:
        """The line takes the requests of its id from now on."""
        self.live[line.correlation_id] = line
        self._lost.pop(line.correlation_id, None)

    def end(self, line: SequenceLine) -> None:
        """The line takes none any more; no-op when that was so."""
        if self.live.get(line.correlation_id) is line:
            del self.live[line.correlation_id]

    def _make_up(self) -> SequencePosition:
        if not self._iterative:
            raise InvalidArgument(
                f"inference request to model '{self._model_name}' must specify a non-zero or non-empty correlation ID"
            )
        self._made_up += 1
        while self._made_up in self.live:
            self._made_up += 1
        return SequencePosition(correlation_id=self._made_up, start=True)

    def _refuse_unknown(self, id: int | str) -> None:
        name = self._model_name
        if id in self._lost:
            raise Unavailable(
                f"sequence {id} of model '{name}' was lost: the model instance that held it failed or was removed; "
                "begin it anew with the START flag"
            )
        raise InvalidArgument(
            f"inference request for sequence {id} to model '{name}' must specify the START flag on the first request of the "
            "sequence"
        )
