"""PublishedCopies: the copies of model versions that frontend processes may send requests to."""

from __future__ import annotations

from collections.abc import Iterable

from tpy.services import ResolvedModel


class PublishedCopies:
    """Each is held from when it is published until no frontend process can send it a request that is not under way: an update
    of a model waits for that, as it waits for requests. Afterwards its number means nothing."""

    def __init__(self) -> None:
        self._copies: dict[int, ResolvedModel] = {}
        self._over = False

    def find(self, copy: int) -> ResolvedModel | None:
        """The copy of this number."""
        return self._copies.get(copy)

    def publish(self, model: ResolvedModel) -> int:
        """Hold it, if it is not held already. Returns its number."""
        if model.copy and model.copy not in self._copies and not self._over:
            model.hold()
            self._copies[model.copy] = model
        return model.copy

    def let_go(self, copies: Iterable[int]) -> None:
        """No frontend process sends them requests any more."""
        for copy in copies:
            model = self._copies.pop(copy, None)
            if model is not None:
                model.release()

    def let_all_go(self) -> None:
        """There are no frontend processes any more, and will be none."""
        self._over = True
        self.let_go(tuple(self._copies))


class HeldCopies:
    """The copies that one frontend process holds, however often."""

    def __init__(self, published: PublishedCopies) -> None:
        self._published = published
        self._held: dict[int, tuple[ResolvedModel, int]] = {}

    def find(self, copy: int) -> ResolvedModel | None:
        """The copy of this number, when a request of the process may go to it."""
        model = self._published.find(copy)
        if model is None and copy in self._held:
            model = self._held[copy][0]
        return model

    def hold(self, copy: int) -> None:
        """The process holds it once more. No-op for a copy that it was not waited for with."""
        model = self.find(copy)
        if model is not None:
            model.hold()
            self._held[copy] = (model, self._held.get(copy, (model, 0))[1] + 1)

    def let_go(self, copy: int) -> None:
        """Once less."""
        model, times = self._held.pop(copy, (None, 0))
        if model is not None:
            model.release()
            if times > 1:
                self._held[copy] = (model, times - 1)

    def let_all_go(self) -> None:
        """The process has ended."""
        for copy, (_, times) in tuple(self._held.items()):
            for _ in range(times):
                self.let_go(copy)
