"""An instance: gathers a batch, runs the program, scatters what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import torch

from tpy.backend import ExecutionBatch, ExecutionRequest, ExecutionResult, batching_of, state_specs
from tpy.config import ModelConfig
from tpy.errors import Internal, InvalidArgument, TpyError
from tpy.messages import DataType, Tensor
from tpy_data.backends.pytorch.device import Device
from tpy_data.backends.pytorch.names import no_such_output
from tpy_data.backends.pytorch.program import Program
from tpy_data.backends.pytorch.settings import ModelSettings
from tpy_data.backends.pytorch.signature import Shape, ValueKind, shape_text
from tpy_data.backends.pytorch.tensors import DATATYPE_OF, Array, from_strings, to_scalar, to_strings

Warn = Callable[[str], None]


class _Output(msgspec.Struct, frozen=True):
    """An output of the configuration. `shape` has the batch dimension; None is not compared."""

    name: str
    place: int | str
    datatype: DataType
    shape: Shape | None
    scalar_shape: Shape


class PyTorchInstance:
    """Runs in one thread, whose PyTorch settings it sets when it is created in it."""

    def __init__(
        self,
        program: Program,
        device: Device,
        config: ModelConfig,
        settings: ModelSettings,
        *,
        inputs: Mapping[str, int],
        outputs: Mapping[str, int | str],
        threads: int,
        warn: Warn,
    ) -> None:
        """To be called in the instance's thread. `inputs` and `outputs` are the places of names (`names`)."""
        self._program: Program | None = program
        self._device = device
        self._name = config.name
        self._inputs = inputs
        self._outputs = _outputs(config, outputs)
        self._settings = settings
        self._warn = warn
        self._warned: set[str] = set()
        batching = batching_of(config)
        self._gather, self._scatter = batching.gather, batching.scatter
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
            with torch.inference_mode(self._settings.inference_mode), torch.no_grad(), self._device.entered():
                values = self._values(program, requests)
                batch.times.inputs_ready()
                made = program.run(values)
                batch.times.outputs_begin()
                outputs = self._fetch(made)
        except TpyError:
            raise
        except Exception as error:
            raise self._device.failure(error) from error
        finally:
            self._device.after()
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
            elif argument.kind is ValueKind.STRINGS:
                values[position] = to_strings(name, array)
            else:
                values[position] = to_scalar(name, array, argument)
        return values

    def _tensor(self, program: Program, array: Array) -> torch.Tensor:
        return self._device.put(array, may_be_written=program.writes_inputs)

    def _fetch(self, made: Sequence[Any] | Mapping[str, Any]) -> list[Tensor]:
        """The outputs of the configuration. Raises InvalidArgument, with Triton's texts, for what the model did not give."""
        found = [(output, _find(output, made)) for output in self._outputs]
        arrays = iter(self._device.fetch([value for _, value in found if isinstance(value, torch.Tensor)]))
        tensors = []
        for output, value in found:
            if isinstance(value, torch.Tensor):
                tensors.append(self._checked(output, next(arrays), DATATYPE_OF.get(value.dtype, DataType.INVALID)))
            elif isinstance(value, list) and all(isinstance(element, str) for element in value):
                tensors.append(self._checked(output, from_strings(value), DataType.BYTES))
            else:
                raise InvalidArgument(f"output '{output.name}' must be of type Tensor or List[str].")
        return tensors

    def _checked(self, output: _Output, array: Array, datatype: DataType) -> Tensor:
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
        return Tensor(output.name, datatype, array)

    def _warn_once(self, text: str) -> None:
        """One warning for each output, whatever its shape is the next time."""
        kind = text.partition("', model provides")[0]
        if kind not in self._warned:
            self._warned.add(kind)
            self._warn(text)


def _outputs(config: ModelConfig, places: Mapping[str, int | str]) -> tuple[_Output, ...]:
    """Of the configuration and, for states that are no outputs too, of the sequence batcher."""
    batch = (-1,) if config.max_batch_size > 0 else ()
    cut = {name for made in config.batch_output for name in made.target_name}
    outputs = {}
    for entry in config.output:
        dims = entry.dims if entry.reshape is None else entry.reshape.shape
        scalar_shape = tuple(1 for _ in dims)
        shape = None if entry.name in cut else (*batch, *dims)
        outputs[entry.name] = _Output(entry.name, places[entry.name], entry.data_type, shape, scalar_shape)
    for spec in state_specs(config):
        if spec.output_name not in outputs:
            outputs[spec.output_name] = _Output(spec.output_name, places[spec.output_name], spec.datatype, None, ())
    return tuple(outputs.values())


def _find(output: _Output, made: Sequence[Any] | Mapping[str, Any]) -> Any:
    place = output.place
    if isinstance(made, Mapping):
        if not isinstance(place, str) or place not in made:
            raise InvalidArgument(
                f"output '{output.name}' is no key of the dict that the model returned: {', '.join(map(str, made))}"
            )
        return made[place]
    if not isinstance(place, int) or place >= len(made):
        raise InvalidArgument(no_such_output(output.name, len(made)))
    return made[place]
