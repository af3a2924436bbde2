"""Requests to a model, and what it says of itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tpy.embedded.engine_thread import EngineThread
from tpy.tritonserver.enums import ModelBatchFlag, ModelTxnPropertyFlag
from tpy.tritonserver.errors import InvalidArgumentError, as_triton
from tpy.tritonserver.inference import AsyncResponseIterator, InferenceRequest, ResponseIterator

if TYPE_CHECKING:
    from tpy.tritonserver.server import Server


class Model:
    """A model of a server, by name; version -1 is its newest. Given out by the server; it need not be there before it is used."""

    def __init__(self, server: Server, name: str, version: int = -1, state: str | None = None, reason: str | None = None) -> None:
        self._server = server
        self.engine: EngineThread = server.engine
        self.name = name
        self.version = version
        self.state = state
        self.reason = reason

    def __repr__(self) -> str:
        return str({"name": self.name, "version": self.version, "state": self.state})

    def answered_by(self, version: int) -> Model:
        """The version that has answered."""
        return Model(self._server, self.name, version or self.version) if self._server.is_started else self

    def create_request(self, **kwargs: Any) -> InferenceRequest:
        """A request to this model; `kwargs` are its fields."""
        kwargs.pop("model", None)
        return InferenceRequest(model=self, **kwargs)

    def infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **kwargs: Any
    ) -> ResponseIterator:
        """Send a request, or one of these fields; returns its responses. Raises what it is refused with."""
        return ResponseIterator(self._request(inference_request, kwargs), raise_on_error=raise_on_error)

    def async_infer(
        self, inference_request: InferenceRequest | None = None, raise_on_error: bool = True, **kwargs: Any
    ) -> AsyncResponseIterator:
        """The same for a task of asyncio."""
        return AsyncResponseIterator(self._request(inference_request, kwargs), raise_on_error=raise_on_error)

    def _request(self, given: InferenceRequest | None, fields: dict[str, Any]) -> InferenceRequest:
        if given is None:
            return InferenceRequest(model=self, **fields)
        if not isinstance(given, InferenceRequest):
            raise InvalidArgumentError(f"expected an InferenceRequest, got {type(given).__name__}")
        return given

    def metadata(self) -> dict[str, Any]:
        """The inputs and outputs, as the protocol has them."""
        found: dict[str, Any] = self._server.ask("model_metadata", **self._named)
        return found

    def config(self, config_version: int = 1) -> dict[str, Any]:
        """The configuration, auto-completed."""
        if config_version != 1:
            raise InvalidArgumentError(f"model configuration version {config_version} is not supported, only 1 is")
        found: dict[str, Any] = self._server.ask("model_config", **self._named)
        return found

    def statistics(self) -> dict[str, Any]:
        """The statistics, as the protocol has them."""
        found: dict[str, Any] = self._server.ask("statistics", **self._named)
        return found

    def ready(self) -> bool:
        """Returns True if it would serve a request."""
        with as_triton():
            return self.engine.run_async(
                lambda: self.engine.services.repository.model_ready(self.name, None if self.version < 0 else self.version)
            )

    def batch_properties(self) -> ModelBatchFlag:
        """Returns FIRST_DIM if it takes batches."""
        return ModelBatchFlag.FIRST_DIM if self.config()["max_batch_size"] > 0 else ModelBatchFlag.UNKNOWN

    def transaction_properties(self) -> ModelTxnPropertyFlag:
        """Returns DECOUPLED if it sends any number of responses."""
        decoupled = self.config().get("model_transaction_policy", {}).get("decoupled", False)
        return ModelTxnPropertyFlag.DECOUPLED if decoupled else ModelTxnPropertyFlag.ONE_TO_ONE

    @property
    def _named(self) -> dict[str, Any]:
        return {"model": self.name, "version": None if self.version < 0 else str(self.version)}
