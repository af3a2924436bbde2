"""An instance of a compiled backend's model."""

from __future__ import annotations

from collections.abc import Sequence

from tpy.backend import ExecutionBatch, ExecutionResult, InstanceFailure, ModelContext
from tpy.errors import TpyError
from tpy_data.native import Host
from tpy_data.native.library import answer


class NativeInstance:
    """A `ModelInstance`. The library runs without the interpreter lock."""

    def __init__(self, native: Host, handle: int, name: str, context: ModelContext) -> None:
        self._host = native
        self._handle = handle
        self._name = name
        self._log = context.log
        self._run = native.function("tpy_instance_executor")(handle)
        self.has_readiness_check: bool = bool(native.function("tpy_instance_has_ready")(handle))

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """As `ModelInstance.execute`. Requests that the library keeps are answered later. Raises InstanceFailure when it has
        written beyond a buffer: nothing of this process's memory can be relied upon then."""
        results: Sequence[ExecutionResult] | None = self._run(batch.requests, batch.times)
        if results is None:
            raise InstanceFailure(f"instance '{self._name}' has written beyond the buffer of an output")
        return results

    def check_ready(self, timeout_s: float) -> bool:
        """As `tpy.backend.ChecksReadiness`; the time is the server's to watch."""
        try:
            answer(self._host.function("tpy_instance_ready")(self._handle))
        except TpyError as error:
            self._log("warning", f"instance '{self._name}' is not ready: {error}")
            return False
        return True

    def close(self) -> None:
        """Raises what the library's ModelInstanceFinalize returns."""
        held = self._host.function("tpy_instance_held")(self._handle)
        try:
            answer(self._host.function("tpy_instance_close")(self._handle))
        finally:
            if held:
                self._log("warning", f"instance '{self._name}' ended with {held} requests that its backend never released")
