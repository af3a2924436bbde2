"""Runs the server in this process: logs, signals, exit code."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import sys
from collections.abc import Iterator, Mapping

import trio

from tpy import limits
from tpy.assembly import Running, ServerOptions, Stop, run_server
from tpy.cli.garbage import collect_garbage
from tpy.cli.signals import notify, watch_signals
from tpy.devices import Devices
from tpy.errors import TpyError
from tpy.frontends.transport import BoundAddress
from tpy.regions import maps
from tpy.reloading import reloaded
from tpy.scratch import remove_abandoned
from tpy.telemetry.log_writer import write_at_once
from tpy.telemetry.logs import LogController
from tpy_data.engine.loading.placing import Machine
from tpy_data.gpus import GpuInventory, discover

_log = logging.getLogger(__name__)

_SWITCH_INTERVAL_S = 0.0005
"""Time for which a thread may hold the interpreter while others wait: a python model that computes in this process keeps the loop
waiting for that long at a time. CPU time per request over HTTP, 16 connections, at 5 / 0.5 / 0.05 ms: built-in identity model
118 / 113 / 127 us, python model in a thread 150 / 140 / 126, in a worker 375 / 357 / 356; with one connection no difference."""


def serve(options: ServerOptions, *, development: bool = False) -> int:
    """Serve until a signal; returns the exit code. The second signal ends the process at once. With `development` the address of
    the page is the last line of the start."""
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    collect_garbage()
    raise_open_files_limit()
    remove_abandoned()  # what servers that were killed have left: models that were decrypted, perhaps
    try:
        logs = LogController(options.log)
    except OSError as error:
        write_at_once(sys.stderr, f"tpy: error: --log-file: cannot write '{options.log.log_file}': {error.strerror}\n")
        return 1
    logs.install()
    try:
        with maps.guarded() if options.allow_client_shm else contextlib.nullcontext(), reloaded(logs.reopen):
            # Not on the loop: the first question to a GPU's driver takes a while.
            gpus = visible_gpus()
            if gpus.trouble:
                _log.warning("there are GPUs, but none can be used: %(trouble)s", {"trouble": gpus.trouble})
            return trio.run(_serve, options, logs, gpus, open_devices(options, gpus), development)
    except BaseExceptionGroup as group:
        errors = list(_leaves(group))
        if not all(isinstance(error, TpyError) for error in errors):
            raise
        return _complain("; ".join(str(error) for error in errors), logs)
    except TpyError as error:
        return _complain(str(error), logs)
    finally:
        logs.remove()


async def _serve(options: ServerOptions, logs: LogController, gpus: GpuInventory, devices: Devices, development: bool) -> int:
    stop = Stop()
    ready = _Ready(shows_page=development)
    async with trio.open_nursery() as nursery:
        await nursery.start(watch_signals, stop)
        outcome = await run_server(
            options,
            logs=logs,
            announce=logs.announce,
            stop=stop,
            gpus=gpus,
            devices=devices,
            opened=ready.opened,
            task_status=ready,
        )
        nursery.cancel_scope.cancel()
    return outcome.value


class _Ready:
    """Tells a service manager when the server serves, and who develops models where the page is: the status of the task that runs
    the server."""

    def __init__(self, *, shows_page: bool) -> None:
        self._shows_page = shows_page

    def opened(self, addresses: Mapping[str, BoundAddress]) -> None:
        """The ports answer, and the models load."""
        if self._shows_page and (http := addresses.get("HTTP")) is not None:
            _log.info("models are loading; the page of the server: http://%(address)s/page/", {"address": http})

    def started(self, value: Running | None = None) -> None:
        """The ports answer, and the models have loaded or failed."""
        notify("READY=1")
        http = None if value is None else value.addresses.get("HTTP")
        if self._shows_page and http is not None:
            _log.info("to ask a model: tpy infer MODEL --url http://%(address)s", {"address": http})
            _log.info("the page of the server: http://%(address)s/page/", {"address": http})


def raise_open_files_limit() -> None:
    """Let this process open as many files as it may, up to OPEN_FILES_WANTED. Where that is not allowed nothing changes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(limits.OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def visible_gpus() -> GpuInventory:
    """The GPUs that backends may use: none with TRITON_SERVER_CPU_ONLY, as in Triton."""
    return GpuInventory() if "TRITON_SERVER_CPU_ONLY" in os.environ else discover()


def open_devices(options: ServerOptions, gpus: GpuInventory) -> Devices:
    """The GPUs that are not too old, with their pools. One whose driver refuses is left to the backends, without tensors that
    stay on it."""
    found = []
    for device_id in Machine(inventory=gpus, compute_capability_min=options.compute_capability_min).gpus:
        from tpy.devices.cuda import CudaDevice  # most machines have no GPU

        try:
            found.append(CudaDevice(device_id))
        except TpyError as error:
            _log.error("Failed to initialize CUDA memory manager: %(reason)s", {"reason": error.message})
    return Devices(found, pinned_pool_bytes=options.pinned_pool_bytes, cuda_pool_bytes=options.cuda_pool_bytes)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _complain(message: str, logs: LogController) -> int:
    if logs.settings.log_file:
        _log.error("%s", message)
    logs.announce(f"tpy: error: {message}")
    return 1
