"""A loaded version: its sessions, one per device."""

from __future__ import annotations

import threading

from tpy.backend import HostPolicy, InstancePlacement, ModelContext, ModelInstance, batching_of, bound, state_specs
from tpy.backend.batching import PlainBatching
from tpy.config.model_config import InstanceKind
from tpy.messages import DataType
from tpy_backends.file_backend import model_file
from tpy_backends.onnxruntime.graphs import NO_CAPTURE
from tpy_backends.onnxruntime.instance import OnnxInstance
from tpy_backends.onnxruntime.providers import providers_for
from tpy_backends.onnxruntime.session import OnnxSession, offered_providers
from tpy_backends.onnxruntime.settings import OnnxRuntimeConfig, session_settings
from tpy_backends.parameter_values import operator_libraries
from tpy_backends.validation import validate

DEFAULT_FILENAME = "model.onnx"

_CPU = -1
"""In the key of the CPU's session, where GPUs have their numbers."""

_Key = tuple[int, HostPolicy]


class OnnxModel:
    """Sessions are shared by the instances of the CPU. Triton makes one for each instance; measured on two cores, two instances
    answered a tenth to a half more requests with one session, and its memory exists once. On a GPU each instance has its own,
    which computes in the instance's stream, unless the model says `share_session_between_instances`."""

    def __init__(self, context: ModelContext, config: OnnxRuntimeConfig, *, is_run: bool = True) -> None:
        """Opens nothing yet. Raises InvalidArgument for a wrong parameter. Without `is_run` sessions are only to be looked at,
        and have no threads."""
        self._context = context
        self._backend_config = config
        settings = session_settings(context.config)
        self._settings = settings if is_run else settings.without_threads()
        self._lock = threading.Lock()
        self._sessions: dict[_Key, OnnxSession] = {}

    def session(self, placement: InstancePlacement) -> OnnxSession:
        """The session for this placement's device and host policy, whose threads are bound to that; opened if it is the first.
        Raises TpyError."""
        on_gpu = placement.kind is InstanceKind.KIND_GPU
        key = (placement.device_id if on_gpu else _CPU, placement.host)
        with self._lock:
            session = self._sessions.get(key)
            if session is None:
                session = self._sessions[key] = self._open(placement)
            return session

    def validated_session(self, placement: InstancePlacement) -> OnnxSession:
        """As `session`; also raises InvalidArgument when the model and the configuration do not fit."""
        session = self.session(placement)
        validate(self._context.config, session.signature)
        return session

    def create_instance(self, placement: InstancePlacement) -> ModelInstance:
        """On a GPU with its own session and stream, as in Triton; otherwise with the session of its device."""
        config = self._context.config
        if self._is_bound(placement):
            return self._create_bound(placement)
        session = self.validated_session(placement)
        run_entries = {**self._settings.run_entries, **(NO_CAPTURE if session.captures else {})}
        if session.captures:
            reason = self._unbound_reason() or "the server has no streams on this device"
            self._context.log("warning", f"model '{config.name}': CUDA graphs are not used, because {reason}")
        if not state_specs(config):
            return OnnxInstance(session, config, run_entries)
        from tpy_backends.onnxruntime.stateful import StatefulOnnxInstance  # few models have states

        return StatefulOnnxInstance(session, config, run_entries)

    def _is_bound(self, placement: InstancePlacement) -> bool:
        on_gpu = placement.kind is InstanceKind.KIND_GPU and placement.device_id in self._context.devices.ids
        return on_gpu and not self._unbound_reason()

    def _unbound_reason(self) -> str:
        """Returns the reason why instances on a GPU pass their tensors through host memory; "" if the configuration does not make
        them."""
        config = self._context.config
        if state_specs(config):
            return "it has states, which are kept in host memory"
        if not isinstance(batching_of(config), PlainBatching):
            return "its batches are ragged, and gathered in host memory"
        if any(given.data_type is DataType.BYTES for given in config.input):
            return "it takes strings, which ONNX Runtime's Python package does not bind"
        return "its instances share a session" if self._settings.shared else ""

    def _create_bound(self, placement: InstancePlacement) -> ModelInstance:
        from tpy_backends.onnxruntime.device_instance import DeviceOnnxInstance, OnDevice  # of GPUs

        devices = self._context.devices
        stream = devices.get(placement.device_id).stream()
        session = self._open(placement, stream.handle)
        validate(self._context.config, session.signature)
        place = OnDevice(devices, placement.device_id, stream, captures=session.captures)
        return DeviceOnnxInstance(session, self._context.config, self._settings.run_entries, place)

    def unload(self) -> None:
        with self._lock:
            self._sessions.clear()

    def _open(self, placement: InstancePlacement, stream: int = 0) -> OnnxSession:
        config = self._context.config
        offered = offered_providers()
        providers = providers_for(config, kind=placement.kind, device_id=placement.device_id, offered=offered, stream=stream)
        path = model_file(self._context, (DEFAULT_FILENAME,), placement=placement, inside=DEFAULT_FILENAME)
        self._context.log("verbose", f"opening '{path}' for model '{config.name}' on {', '.join(name for name, _ in providers)}")
        with bound(placement.host):
            return OnnxSession(
                path,
                self._settings.within(placement.host.cpu_cores),
                providers=providers,
                operator_libraries=operator_libraries(self._context),
                global_thread_pool=self._backend_config.global_thread_pool,
            )
