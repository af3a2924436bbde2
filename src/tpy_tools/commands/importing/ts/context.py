"""The context that a handler is given: facts of its model, and of each request of a batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import __version__
from .metrics.metrics_store import MetricsStore


class RequestProcessor:
    """The headers of one request, and status and headers of its answer."""

    def __init__(self, request_header: Mapping[str, Any]) -> None:
        self._request_header = dict(request_header)
        self._response_header: dict[str, str] = {}
        self._status_code = 200
        self._reason_phrase: str | None = None

    def get_request_property(self, key: str) -> Any:
        """A header of the request, whatever its case; None: not in the request."""
        return self._request_header.get(key, self._request_header.get(key.lower()))

    def get_request_properties(self) -> dict[str, Any]:
        """All headers of the request."""
        return self._request_header

    def report_status(self, code: int, reason_phrase: str | None = None) -> None:
        """Answer with this status."""
        self._status_code = code
        self._reason_phrase = reason_phrase

    def get_response_status_code(self) -> int:
        """The status of the answer."""
        return self._status_code

    def get_response_status_phrase(self) -> str | None:
        """The words beside the status."""
        return self._reason_phrase

    def add_response_property(self, key: str, value: str) -> None:
        """Answer with this header."""
        self._response_header[key] = value

    def get_response_headers(self) -> dict[str, str]:
        """All headers of the answer."""
        return self._response_header

    def get_response_header(self, key: str) -> str | None:
        """A header of the answer."""
        return self._response_header.get(key)


class Context:
    """The model, and the batch that is handled."""

    def __init__(
        self,
        model_name: str,
        model_dir: str,
        manifest: Mapping[str, Any],
        batch_size: int,
        gpu: int | None,
        mms_version: str = __version__,
        limit_max_image_pixels: bool = True,
        metrics: MetricsStore | None = None,
        model_yaml_config: Mapping[str, Any] | None = None,
    ) -> None:
        self.model_name = model_name
        self.manifest = manifest
        self.model_yaml_config = {} if model_yaml_config is None else model_yaml_config
        self.metrics = metrics
        self.request_ids: dict[int, str] | None = None
        self.request_processor: Sequence[RequestProcessor] = ()
        self.stopping_criteria: Sequence[Callable[[Any], bool | None]] | None = None
        self.header_key_sequence_id = os.environ.get("TS_REQUEST_SEQUENCE_ID", "ts_request_sequence_id")
        self.header_key_sequence_start = os.environ.get("TS_REQUEST_SEQUENCE_START", "ts_request_sequence_start")
        self.header_key_sequence_end = os.environ.get("TS_REQUEST_SEQUENCE_END", "ts_request_sequence_end")
        self._system_properties = {
            "model_dir": model_dir,
            "gpu_id": gpu,
            "batch_size": batch_size,
            "server_name": "MMS",
            "server_version": mms_version,
            "limit_max_image_pixels": limit_max_image_pixels,
        }

    @property
    def system_properties(self) -> dict[str, Any]:
        """The place of the model, its batch size, its GPU."""
        return self._system_properties

    def get_request_id(self, idx: int = 0) -> str | None:
        """The id of a request of the batch."""
        return None if self.request_ids is None else self.request_ids.get(idx)

    def get_request_header(self, idx: int, key: str) -> Any:
        """A header of a request; None: not in the request."""
        return self.request_processor[idx].get_request_property(key)

    def get_all_request_header(self, idx: int) -> dict[str, Any]:
        """All headers of a request."""
        return self.request_processor[idx].get_request_properties()

    def get_sequence_id(self, idx: int) -> Any:
        """The sequence that a request says it belongs to."""
        return self.get_request_header(idx, self.header_key_sequence_id)

    def set_response_content_type(self, idx: int, value: str) -> None:
        """Answer a request with this content type."""
        self.set_response_header(idx, "content-type", value)

    def get_response_content_type(self, idx: int) -> str | None:
        """The content type of an answer, where the handler has set it."""
        return self.get_response_headers(idx).get("content-type")

    def set_response_header(self, idx: int, key: str, value: str) -> None:
        """Answer a request with this header."""
        self.request_processor[idx].add_response_property(key, value)

    def get_response_headers(self, idx: int) -> dict[str, str]:
        """The headers of an answer."""
        return self.request_processor[idx].get_response_headers()

    def set_response_status(self, code: int = 200, phrase: str = "", idx: int = 0) -> None:
        """Answer a request with this status."""
        self.request_processor[idx].report_status(code, reason_phrase=phrase)

    def set_all_response_status(self, code: int = 200, phrase: str = "") -> None:
        """Answer all requests of the batch with this status."""
        for processor in self.request_processor:
            processor.report_status(code, reason_phrase=phrase)

    def get_response_status(self, idx: int) -> tuple[int, str | None]:
        """The status of an answer, and the words beside it."""
        processor = self.request_processor[idx]
        return processor.get_response_status_code(), processor.get_response_status_phrase()
