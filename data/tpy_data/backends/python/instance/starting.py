"""From the order for a worker to its instance."""

from __future__ import annotations

from tpy.errors import Internal
from tpy.process_output import LogLine
from tpy_data.backends.python.environment.process import Spawner
from tpy_data.backends.python.instance.loading import StartedWorker
from tpy_data.backends.python.instance.process_instance import ProcessInstance
from tpy_data.backends.python.instance.start import WorkerStart
from tpy_data.backends.python.settings import PythonSettings
from tpy_data.backends.states import ImplicitState


def start_instance(
    start: WorkerStart,
    settings: PythonSettings,
    spawner: Spawner,
    log: LogLine,
    *,
    state: ImplicitState | None,
    execute_limit_s: float | None,
) -> ProcessInstance:
    """Starts a worker that loads the model. Raises as `StartedWorker`, and Internal when no more files can be opened."""
    worker = StartedWorker(start, settings, spawner, log)
    log("verbose", f"worker process {worker.connection.pid} is ready")
    try:
        return ProcessInstance(worker, start, settings, log, state=state, execute_limit_s=execute_limit_s)
    except BaseException as error:
        worker.connection.give_up()
        if isinstance(error, OSError):
            raise Internal(f"cannot watch the worker of '{start.name}': {error}") from error
        raise
