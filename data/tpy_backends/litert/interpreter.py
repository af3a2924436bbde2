"""An interpreter: reads a file, says what its tensors are, runs it. The one module that imports LiteRT."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import ai_edge_litert
import numpy as np
from ai_edge_litert.interpreter import Interpreter

from tpy.config import ModelConfig
from tpy.errors import Internal, InvalidArgument, Unsupported
from tpy.messages import DataType
from tpy.messages.datatypes import from_numpy
from tpy_backends.contents import contents_of
from tpy_backends.named_tensors import Array
from tpy_backends.signature import VARIABLE, Signature, TensorInfo

VERSION: Final[str] = ai_edge_litert.__version__

_SIGNATURE = "serving_default"
_NOT_READ = ("Flatbuffer", "mmap", "schema version")


class LoadedFile:
    """A `NamedProgram`, used in one thread. Weights are mapped from the file, so that those of several interpreters are in memory
    once."""

    def __init__(self, path: Path, config: ModelConfig, *, signature: str, threads: int | None) -> None:
        """Names are those of the signature (`signature`, else `serving_default`, else the only one), or those of the file's
        tensors where it has no signature or the configuration uses them. Raises Internal for a file that is not a model or needs
        an operator that is not there, InvalidArgument for a signature that it does not have, Unsupported for a type that cannot
        be served."""
        try:
            self._interpreter = Interpreter(model_path=str(path), num_threads=threads)
            self._interpreter.allocate_tensors()
            inputs = {each["name"]: each for each in self._interpreter.get_input_details()}
            outputs = {each["name"]: each for each in self._interpreter.get_output_details()}
            signatures = self._interpreter.get_signature_list()
            self._runner: Any = None
            if signatures and not {tensor.name for tensor in config.input} & (inputs.keys() - _input_names(signatures)):
                self._runner = self._interpreter.get_signature_runner(_chosen(signatures, signature, config.name))
                inputs, outputs = self._runner.get_input_details(), self._runner.get_output_details()
        except InvalidArgument:
            raise
        except Exception as error:
            text = str(error).strip() or "it gives no reason; memory may be short"
            advice = contents_of(path, "litert") if any(word in text for word in _NOT_READ) else ""
            raise Internal(f"unable to load model '{config.name}': LiteRT cannot read '{path.name}': {text}{advice}") from error
        self._inputs = {name: int(each["index"]) for name, each in inputs.items()}
        self._outputs = {name: int(each["index"]) for name, each in outputs.items()}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self.signature = Signature(
            inputs={name: _info(name, each) for name, each in inputs.items()},
            outputs={name: _info(name, each) for name, each in outputs.items()},
        )

    def run(self, feed: Mapping[str, Array], names: Sequence[str]) -> Sequence[Array]:
        """As `NamedProgram`."""
        try:
            if self._runner is not None:
                made = self._runner(**feed)
                return [made[name] for name in names]
            return self._run_tensors(feed, names)
        except Exception as error:
            raise Internal(f"LiteRT execute failure: {error}") from error

    def close(self) -> None:
        """As `NamedProgram`: the interpreter is the instance's alone."""

    def _run_tensors(self, feed: Mapping[str, Array], names: Sequence[str]) -> Sequence[Array]:
        interpreter, inputs = self._interpreter, self._inputs
        shapes = {name: array.shape for name, array in feed.items()}
        if shapes != self._shapes:
            self._shapes = {}
            for name, shape in shapes.items():
                interpreter.resize_tensor_input(inputs[name], shape)
            interpreter.allocate_tensors()
            self._shapes = shapes
        for name, array in feed.items():
            interpreter.set_tensor(inputs[name], array)
        interpreter.invoke()
        return [interpreter.get_tensor(self._outputs[name]) for name in names]


def _input_names(signatures: Mapping[str, Mapping[str, Collection[str]]]) -> set[str]:
    return {name for each in signatures.values() for name in each["inputs"]}


def _chosen(signatures: Mapping[str, Mapping[str, Collection[str]]], wanted: str, model: str) -> str:
    """Raises InvalidArgument."""
    name = wanted or (_SIGNATURE if _SIGNATURE in signatures or len(signatures) > 1 else next(iter(signatures)))
    if name not in signatures:
        each = "; ".join(f"{key}({', '.join(value['inputs'])})" for key, value in sorted(signatures.items()))
        raise InvalidArgument(
            f"unable to load model '{model}', its file has no signature '{name}' (TF_SIGNATURE_DEF); it has: {each}"
        )
    return name


def _info(name: str, details: Mapping[str, Any]) -> TensorInfo:
    datatype = from_numpy(np.dtype(details["dtype"]))
    if datatype is DataType.INVALID:
        raise Unsupported(
            f"unsupported type '{np.dtype(details['dtype'])}' of tensor '{name}': the protocol has no such datatype"
        )
    declared, now = details["shape_signature"], details["shape"]
    sizes = declared if len(declared) == len(now) else now
    return TensorInfo(name, datatype, tuple(VARIABLE if size < 0 else int(size) for size in sizes))
