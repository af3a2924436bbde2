"""An instance: gathers a batch, runs the program, scatters what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import torch

from tpy.backend import (
    ExecutionBatch,
    ExecutionRequest,
    ExecutionResult,
    InstanceFailure,
    batching_of,
    gather_where_it_is,
    state_specs,
    stays_on_device,
)
from tpy.backend.batching import PlainBatching
from tpy.config import ModelConfig
from tpy.devices import NO_DEVICES, DeviceArray, Devices
from tpy.errors import Internal, InvalidArgument, TpyError
from tpy.messages import DataType, Tensor
from tpy_backends.pytorch.names import no_such_output
from tpy_backends.pytorch.program import Program
from tpy_backends.pytorch.settings import PyTorchModelSettings
from tpy_backends.pytorch.signature import Shape, ValueKind
from tpy_backends.pytorch.tensors import DATATYPE_OF, Array, from_strings, to_scalar, to_strings
from tpy_backends.pytorch.transfer import Transfer
from tpy_backends.signature import shape_text

Warn = Callable[[str], None]


class _Output(msgspec.Struct, frozen=True):
    """An output of the configuration. `shape` has the batch dimension; None: not compared."""

    name: str
    place: int | str
    datatype: DataType
    shape: Shape | None
    scalar_shape: Shape
    is_state: bool = False


class PyTorchInstance:
    """Runs in one thread, whose PyTorch settings it sets when it is created in it."""

    def __init__(
        self,
        program: Program,
        transfer: Transfer,
        config: ModelConfig,
        settings: PyTorchModelSettings,
        *,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int | str],
        threads: int,
        warn: Warn,
        devices: Devices = NO_DEVICES,
    ) -> None:
        """To be called in the instance's thread. `inputs` and `outputs` are the places of names (`names`)."""
        self._program: Program | None = program
        self._transfer = transfer
        self._name = config.name
        self._inputs = inputs
        self._outputs = _outputs(config, outputs)
        self._settings = settings
        self._warn = warn
        self._warned: set[str] = set()
        batching = batching_of(config)
        self._gather: Callable[[Sequence[ExecutionRequest]], Mapping[str, Array | DeviceArray]] = batching.gather
        self._scatter = batching.scatter
        self.takes = transfer.takes if isinstance(batching, PlainBatching) else frozenset()
        """As `tpy.backend.DeviceInstance`: ragged batches are made on the host."""
        for place in self.takes:
            self._gather = partial(gather_where_it_is, devices=devices, device_id=place.device_id)
        torch.get_num_threads()  # a thread's first question sets it to what any thread set last; from then on it keeps its own
        torch.set_num_threads(threads)
        torch._C._set_graph_executor_optimize(settings.optimized_execution)

    def execute(self, batch: ExecutionBatch) -> Sequence[ExecutionResult]:
        """One run for the whole batch. Raises Internal with PyTorch's text: then every request of the batch fails."""
        program = self._program
        if program is None:
            raise Internal("the instance was closed")
        requests = batch.requests
        try:
            with torch.inference_mode(self._settings.inference_mode), torch.no_grad(), self._transfer.entered():
                values = self._values(program, requests)
                batch.times.inputs_ready()
                made = program.run(values)
                batch.times.outputs_begin()
                outputs = self._fetch(made, requests)
        except (TpyError, InstanceFailure):
            raise
        except Exception as error:
            raise self._transfer.failure(error) from error
        finally:
            self._transfer.after()
        return self._scatter(requests, outputs)

    def close(self) -> None:
        """Lets go of the program, whoever still holds this object."""
        self._program = None

    def _values(self, program: Program, requests: Sequence[ExecutionRequest]) -> dict[int, Any]:
        """The inputs of the batch as the program takes them, by position."""
        feed = self._gather(requests)
        signature = program.signature
        if signature.takes_dict:
            return {0: {name: self._tensor(program, array) for name, array in feed.items()}}
        values: dict[int, Any] = {}
        for name, array in feed.items():
            position = self._inputs[name]
            argument = signature.inputs[position]
            if argument.kind is ValueKind.TENSOR:
                values[position] = self._tensor(program, array)
                continue
            array = array.to_host() if isinstance(array, DeviceArray) else array
            if argument.kind is ValueKind.STRINGS:
                values[position] = to_strings(name, array)
            else:
                values[position] = to_scalar(name, array, argument)
        return values

    def _tensor(self, program: Program, array: Array | DeviceArray) -> torch.Tensor:
        return self._transfer.put(array, may_be_written=program.writes_inputs)

    def _fetch(self, made: Sequence[Any] | Mapping[str, Any], requests: Sequence[ExecutionRequest]) -> list[Tensor]:
        """The outputs of the configuration. Raises InvalidArgument, with Triton's texts, for what the model did not give."""
        found = [(output, _find(output, made)) for output in self._outputs]
        given = [(output, value) for output, value in found if isinstance(value, torch.Tensor)]
        stay = [not output.is_state and stays_on_device(requests, output.name) for output, _ in given]
        arrays = iter(self._transfer.fetch([value for _, value in given], stay))
        tensors = []
        for output, value in found:
            if isinstance(value, torch.Tensor):
                tensors.append(self._checked(output, next(arrays), DATATYPE_OF.get(value.dtype, DataType.INVALID)))
            elif isinstance(value, list) and all(isinstance(element, str) for element in value):
                tensors.append(self._checked(output, from_strings(value), DataType.BYTES))
            else:
                raise InvalidArgument(f"output '{output.name}' must be of type Tensor or List[str].")
        return tensors

    def _checked(self, output: _Output, array: Array | DeviceArray, datatype: DataType) -> Tensor:
        if datatype is not output.datatype:
            raise InvalidArgument(
                f"configuration expects datatype {output.datatype.config_name} for output '{output.name}', model provides "
                f"TYPE_{datatype.value}"
            )
        if not array.ndim:
            array = array.reshape(output.scalar_shape)
        shape = array.shape
        if output.shape is not None and (
            len(shape) != len(output.shape) or any(want not in (-1, have) for have, want in zip(shape, output.shape, strict=True))
        ):
            self._warn_once(
                f"model '{self._name}': configuration expects shape {shape_text(output.shape)} for output '{output.name}', model "
                f"provides {shape_text(shape)}"
            )
        return Tensor(output.name, datatype, array.as_array() if isinstance(array, DeviceArray) else array)

    def _warn_once(self, text: str) -> None:
        """One warning for each output, whatever its shape is the next time."""
        kind = text.partition("', model provides")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(text)


def _outputs(config: ModelConfig, places: Mapping[str, int | str]) -> tuple[_Output, ...]:
    """Of the configuration and, for states that are not also outputs, of the sequence batcher."""
    batch = (-1,) if config.max_batch_size > 0 else ()
    cut = {name for made in config.batch_output for name in made.target_name}
    outputs = {}
    for entry in config.output:
        dims = entry.dims if entry.reshape is None else entry.reshape.shape
        scalar_shape = tuple(1 for _ in dims)
        shape = None if entry.name in cut else (*batch, *dims)
        outputs[entry.name] = _Output(entry.name, places[entry.name], entry.data_type, shape, scalar_shape)
    for spec in state_specs(config):
        known = outputs.get(spec.output_name)
        if known is None:
            known = _Output(spec.output_name, places[spec.output_name], spec.datatype, None, ())
        outputs[spec.output_name] = msgspec.structs.replace(known, is_state=True)
    return tuple(outputs.values())


def _find(output: _Output, made: Sequence[Any] | Mapping[str, Any]) -> Any:
    place = output.place
    if isinstance(made, Mapping):
        if not isinstance(place, str) or place not in made:
            raise InvalidArgument(
                f"output '{output.name}' is not a key of the dict that the model returned: {', '.join(map(str, made))}"
            )
        return made[place]
    if not isinstance(place, int) or place >= len(made):
        raise InvalidArgument(no_such_output(output.name, len(made)))
    return made[place]
