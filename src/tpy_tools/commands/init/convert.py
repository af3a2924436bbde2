"""Converts a trained model to what the server reads. Run as a script by the interpreter of the environment that the model was
made in, which need not have tpy: `python convert.py TASK` with a task as JSON; the last line that it prints is the result.

A task has `action` (a name in ACTIONS), `source`, `target`, `inputs`: name, type and sizes of a row of each input, where the
model does not say, and `network`: FILE:CLASS of the network whose weights `source` has. A result has `facts`, or `error` with
what to do, or `missing`: packages to install.
"""

from __future__ import annotations

import inspect
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

_BATCH = "batch"
_OPEN_SIZE = 16
"""Stands for -1 where a model is run."""

_NUMPY_NAMES = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BOOL": "bool"}


class Missing(Exception):
    """Packages are not installed in this environment."""

    def __init__(self, *packages: str) -> None:
        super().__init__(*packages)
        self.packages = packages


class Unusable(Exception):
    """The file is not a model that can be converted. `str()` says why, and what to do."""


class Input(NamedTuple):
    """An input as the command line describes it: the sizes are those of one row, -1 for any."""

    name: str
    datatype: str
    dims: tuple[int, ...]


class Column(NamedTuple):
    """A column of a data frame: a number, or a text, of which `sample` is one."""

    name: str
    sample: str | None

    @property
    def as_input(self) -> Input:
        return Input(self.name, "FP32" if self.sample is None else "BYTES", (1,))


class Task(NamedTuple):
    """One conversion."""

    source: Path
    target: Path
    inputs: tuple[Input, ...]
    network: str = ""


def describe_pickle(task: Task) -> dict[str, Any]:
    """The features and labels of a model with `predict`, for a Python model that calls it."""
    before = set(sys.modules)
    model = _unpickled(task.source)
    if not hasattr(model, "predict"):
        raise Unusable(f"it holds a {type(model).__name__}, which has no predict; write a model.py and use --from model.py")
    import numpy as np

    columns = _columns(model)
    if task.inputs and (columns or len(task.inputs) > 1):
        samples = _samples(columns)
        columns = tuple(
            Column(each.name, samples.get(each.name, "text") if each.datatype == "BYTES" else None) for each in task.inputs
        )
    errors = []
    for inputs, row in _trials(model, task.inputs, columns):
        try:
            label = np.asarray(model.predict(row))
            probabilities = np.asarray(model.predict_proba(row)) if hasattr(model, "predict_proba") else None
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}".splitlines()[0])
            continue
        return {
            "inputs": [list(each) for each in inputs],
            "columns": [each.name for each in columns],
            "samples": _samples(columns),
            "modules": _own_modules(before, task.source),
            "result": "label" if probabilities is not None or hasattr(model, "classes_") else "prediction",
            "label": "TYPE_STRING" if label.dtype.kind in "OUS" else "TYPE_INT64" if label.dtype.kind in "iub" else "TYPE_FP64",
            "labels": list(label.shape[1:]) or [1],
            "probabilities": None if probabilities is None else list(probabilities.shape[1:]),
        }
    tried = "texts" if getattr(model, "n_features_in_", None) is None else "rows of numbers, nor texts"
    tried = "what --input says" if task.inputs else "the columns that it was fitted to" if columns else tried
    unknown = "; where it takes numbers, say how many: --input X:FP32:4" if tried == "texts" else ""
    raise Unusable(f"its predict does not take {tried} ({'; '.join(errors)}){unknown}; or write a model.py, --from model.py")


def _trials(model: Any, given: tuple[Input, ...], columns: tuple[Column, ...]) -> list[tuple[tuple[Input, ...], Any]]:
    """Returns the inputs that a model with `predict` may take, each with a row of them to try."""
    import numpy as np

    if columns:
        pandas = _imported("pandas", "pandas")
        frame = pandas.DataFrame({each.name: [0.0 if each.sample is None else each.sample] for each in columns})
        if wide := [each.name for each in given if each.dims != (1,)]:
            raise Unusable(f"--input {wide[0]}: several inputs are the columns of a data frame; expected {wide[0]}:TYPE:1")
        return [(given or tuple(each.as_input for each in columns), frame)]
    count = getattr(model, "n_features_in_", None)
    inputs = given or (Input("TEXT", "BYTES", (1,)),)
    if not given and count is not None:
        inputs = (Input("X", "FP32", (int(count),)), *inputs)
    trials: list[tuple[tuple[Input, ...], Any]] = []
    for each in inputs:
        if each.datatype == "BYTES" and each.dims != (1,):
            raise Unusable(f"--input {each.name}: predict takes one text in a row; expected {each.name}:BYTES:1")
        sizes = (1, *(_OPEN_SIZE if size < 0 else size for size in each.dims))
        numbers = _NUMPY_NAMES.get(each.datatype, each.datatype.lower())
        trials.append(((each,), np.array(["text"]) if each.datatype == "BYTES" else np.zeros(sizes, numbers)))
    return trials


def _own_modules(before: set[str], source: Path) -> list[str]:
    """The files and folders of the modules that the file's author wrote: they lie beside it, or where the command runs."""
    installed = [Path(prefix).resolve() for prefix in (sys.prefix, sys.base_prefix)]
    found = set()
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name.partition(".")[0]], "__file__", None)
        path = Path(file).resolve() if file else None
        if path is None or any(path.is_relative_to(prefix) for prefix in installed):
            continue
        place = path.parent if path.name == "__init__.py" else path
        if place.parent in (source.resolve().parent, Path.cwd()):
            found.add(str(place))
    return sorted(found)


def pickle_to_onnx(task: Task) -> dict[str, Any]:
    """Scikit-learn, and what XGBoost and LightGBM offer in its form."""
    model = _unpickled(task.source)
    family = type(model).__module__.partition(".")[0]
    if family in ("xgboost", "lightgbm"):
        return _trees_to_onnx(family, model, task.target)
    skl2onnx = _imported("skl2onnx", "skl2onnx")
    types = _imported("skl2onnx.common.data_types", "skl2onnx")
    count = getattr(model, "n_features_in_", None)
    columns = () if task.inputs else _columns(model)
    if task.inputs:
        initial = [(each.name, _onnx_type(types, each)) for each in task.inputs]
    elif columns:
        initial = [(each.name, _onnx_type(types, each.as_input)) for each in columns]
    elif count is None:
        initial = [("TEXT", types.StringTensorType([None, 1]))]
    else:
        initial = [("X", types.FloatTensorType([None, int(count)]))]
    # Without it the probabilities of a classifier are a list of dictionaries, which no tensor can hold.
    options = {id(model): {"zipmap": False}} if hasattr(model, "predict_proba") else None
    try:
        converted = skl2onnx.convert_sklearn(model, initial_types=initial, options=options)
    except Exception as error:
        said = str(error).strip() or type(error).__name__
        raise Unusable(f"skl2onnx cannot convert it: {said.splitlines()[0]}; --as python serves it as it is") from error
    task.target.write_bytes(converted.SerializeToString())
    return {"by": f"skl2onnx {skl2onnx.__version__}, zipmap off", "samples": _samples(columns)}


def _columns(model: Any) -> tuple[Column, ...]:
    """The columns of the data frame that a pipeline was fitted to, where it takes them by name; of other models none."""
    texts: dict[str, str] = {}
    by_name = False
    for part, chosen in _parts(model):
        names = [chosen] if isinstance(chosen, str) else list(chosen) if isinstance(chosen, list | tuple) else []
        by_name |= any(isinstance(name, str) for name in names)
        for step in (part, *(step for _, step in getattr(part, "steps", ()))):
            for name, known in zip(names, getattr(step, "categories_", ()), strict=False):
                if known.dtype.kind in "OUS":
                    texts[name] = str(known[0])
            if isinstance(chosen, str) and hasattr(step, "vocabulary_"):
                texts[chosen] = "text"
    return tuple(Column(str(name), texts.get(name)) for name in model.feature_names_in_) if by_name else ()


def _parts(model: Any) -> list[tuple[Any, Any]]:
    """The transformers of each ColumnTransformer in a pipeline, with the columns that they take."""
    model = getattr(model, "best_estimator_", model)
    found = [(part, chosen) for _, part, chosen in getattr(model, "transformers_", ())]
    for _, step in getattr(model, "steps", ()):
        found += _parts(step)
    return found if hasattr(model, "feature_names_in_") else []


def _samples(columns: tuple[Column, ...]) -> dict[str, str]:
    return {each.name: each.sample for each in columns if each.sample is not None}


def xgboost_to_onnx(task: Task) -> dict[str, Any]:
    """A file of XGBoost's own."""
    xgboost = _imported("xgboost", "xgboost")
    booster = xgboost.Booster()
    booster.load_model(str(task.source))
    return _trees_to_onnx("xgboost", booster, task.target)


def lightgbm_to_onnx(task: Task) -> dict[str, Any]:
    """A file of LightGBM's own."""
    lightgbm = _imported("lightgbm", "lightgbm")
    return _trees_to_onnx("lightgbm", lightgbm.Booster(model_file=str(task.source)), task.target)


def _trees_to_onnx(family: str, model: Any, target: Path) -> dict[str, Any]:
    onnxmltools = _imported("onnxmltools", "onnxmltools")
    types = _imported("onnxmltools.convert.common.data_types", "onnxmltools")
    counts = (getattr(model, name, None) for name in ("n_features_in_", "num_features", "num_feature"))
    found = next(count for count in counts if count is not None)
    count = int(found() if callable(found) else found)
    convert = onnxmltools.convert_xgboost if family == "xgboost" else onnxmltools.convert_lightgbm
    extra = {"zipmap": False} if "zipmap" in inspect.signature(convert).parameters or family == "lightgbm" else {}
    converted = convert(model, initial_types=[("X", types.FloatTensorType([None, count]))], **extra)
    for output in converted.graph.output:  # LightGBM's label says that it has one row
        output.type.tensor_type.shape.dim[0].dim_param = _BATCH
    target.write_bytes(converted.SerializeToString())
    return {"by": f"onnxmltools {onnxmltools.__version__}"}


def keras_to_onnx(task: Task) -> dict[str, Any]:
    """A file of Keras 3."""
    keras = _imported("keras", "keras")
    _imported("tf2onnx", "tf2onnx")
    model = keras.models.load_model(task.source)
    model.export(str(task.target), format="onnx", verbose=False)
    return {"by": f"keras {keras.__version__}"}


def torch_to_onnx(task: Task) -> dict[str, Any]:
    """A module of PyTorch, scripted or not."""
    torch = _imported("torch", "torch")
    module = _torch_module(torch, task)
    examples = _torch_examples(torch, task.inputs)
    # Of two rows: the exporter takes a size of 1 for a constant.
    names = [each.name for each in task.inputs]
    axes = {name: {0: _BATCH} for name in names}
    scripted = isinstance(module, torch.jit.ScriptModule)
    if not scripted:
        _imported("onnxscript", "onnxscript")
    with torch.no_grad():
        results = module(*examples)
    count = len(results) if isinstance(results, tuple | list) else 1
    outputs = ["Y"] if count == 1 else [f"Y{at}" for at in range(count)]
    axes |= {name: {0: _BATCH} for name in outputs} if scripted else {}
    extra: dict[str, Any] = {"dynamic_axes": axes, "dynamo": False}
    if not scripted:
        extra = {"dynamic_shapes": tuple({0: torch.export.Dim.DYNAMIC} for _ in names), "dynamo": True, "external_data": False}
        extra["verbose"] = False
    try:
        torch.onnx.export(module, examples, str(task.target), input_names=names, output_names=outputs, **extra)
    except Exception as error:
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Unusable(f"torch.onnx.export cannot convert it: {said}; --as torchscript keeps it in PyTorch") from error
    return {"by": f"torch.onnx.export of PyTorch {torch.__version__}"}


def torch_to_torchscript(task: Task) -> dict[str, Any]:
    """TorchScript as it is; another module is traced."""
    torch = _imported("torch", "torch")
    module = _torch_module(torch, task)
    examples = _torch_examples(torch, task.inputs)
    with torch.no_grad():
        outputs = _torch_outputs(torch, module, task.inputs)
        if isinstance(module, torch.jit.ScriptModule):
            task.target.write_bytes(task.source.read_bytes())
            how = "copied as it is"
        else:
            module = torch.jit.trace(module, examples)
            module.save(str(task.target))
            how = "traced"
    arguments = [each.name for each in module.forward.schema.arguments][1:]
    return {"by": f"PyTorch {torch.__version__}, {how}", "outputs": outputs, "arguments": arguments}


def torch_program(task: Task) -> dict[str, Any]:
    """An exported program, which says what it takes, or a package of AOTInductor, which is run to learn what it gives."""
    torch = _imported("torch", "torch")
    facts: dict[str, Any] = {"by": f"PyTorch {torch.__version__}, copied as it is", "outputs": None, "arguments": []}
    try:
        torch.export.load(str(task.source))
    except Exception:
        try:
            package = torch._inductor.aoti_load_package(str(task.source))
        except Exception as error:
            said = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise Unusable(f"it is neither an exported program nor a package of AOTInductor: {said}") from error
        _torch_examples(torch, task.inputs)  # raises without examples
        facts["outputs"] = _torch_outputs(torch, package, task.inputs)
        facts["rows"] = 2  # it neither says nor checks how many it was compiled for
        facts["by"] += "; it does not say for how many rows it was compiled: max_batch_size is 2"
    else:
        if task.inputs:
            raise Unusable("--input: not accepted for an exported program: the file describes its inputs")
    task.target.write_bytes(task.source.read_bytes())
    return facts


def _torch_outputs(torch: Any, module: Any, inputs: tuple[Input, ...]) -> list[dict[str, Any]]:
    """The types and sizes of a row of each result; a size that follows an open size of an input is -1."""
    first, second = _torch_results(torch, module, inputs, _OPEN_SIZE), None
    if any(size < 0 for each in inputs for size in each.dims):
        try:
            second = _torch_results(torch, module, inputs, _OPEN_SIZE + 1)
        except Exception:
            second = None  # it takes some sizes only
    outputs = []
    for at, each in enumerate(first):
        sizes, others = list(each.shape[1:]), list((second or first)[at].shape[1:])
        dims = [size if size == other else -1 for size, other in zip(sizes, others, strict=True)]
        outputs.append({"datatype": str(each.dtype).removeprefix("torch."), "dims": dims})
    return outputs


def _torch_results(torch: Any, module: Any, inputs: tuple[Input, ...], open_size: int) -> list[Any]:
    results = module(*_torch_examples(torch, inputs, open_size))
    return list(results) if isinstance(results, tuple | list) else [results]


def _torch_network(torch: Any, task: Task) -> Any:
    """The network of --class with the weights of the file."""
    import importlib.util

    file, _, name = task.network.rpartition(":")
    path = Path(file).resolve()
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if not path.is_file() or spec is None or spec.loader is None:
        raise Unusable(f"--class {task.network}: expected FILE.py:CLASS, the file that defines the network")
    sys.path.insert(0, str(path.parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    make = getattr(module, name, None)
    if make is None:
        raise Unusable(f"--class {task.network}: {path.name} has no {name}")
    try:
        network = make()
    except TypeError as error:
        raise Unusable(
            f"--class {task.network}: {error}; write a function without arguments that makes the network, and name that"
        ) from error
    weights = torch.load(str(task.source), map_location="cpu", weights_only=True)
    try:
        network.load_state_dict(weights.get("state_dict", weights))
    except Exception as error:
        raise Unusable(f"--class {task.network}: the weights are of another network: {' '.join(str(error).split())}") from error
    return network.eval()


def _torch_module(torch: Any, task: Task) -> Any:
    if task.network:
        return _torch_network(torch, task)
    source = task.source
    try:
        return torch.jit.load(str(source), map_location="cpu").eval()
    except RuntimeError:
        pass  # no TorchScript
    sys.path.insert(0, str(source.resolve().parent))  # a pickled module needs its class
    try:
        module = torch.load(str(source), map_location="cpu", weights_only=False)
    except (AttributeError, ModuleNotFoundError) as error:
        raise Unusable(
            f"its class cannot be imported ({error}); save it with torch.jit.script(model).save('model.pt'), or put the file "
            "that defines the class beside it"
        ) from error
    if not isinstance(module, torch.nn.Module):
        raise Unusable(
            f"it holds {type(module).__name__}, not a network: weights alone, perhaps. Make the network, load them into it, and "
            "save it whole: torch.jit.script(model).save('model.pt'); or name its class: --class net.py:Net"
        )
    return module.eval()


def _torch_examples(torch: Any, inputs: tuple[Input, ...], open_size: int = _OPEN_SIZE) -> tuple[Any, ...]:
    if not inputs:
        raise Unusable(
            "PyTorch's files do not say what they take: name each input with --input NAME:TYPE:SIZES of one row, such as "
            "--input X:FP32:3,224,224"
        )
    return tuple(
        torch.ones(
            (2, *(open_size if size < 0 else size for size in each.dims)),
            dtype=getattr(torch, _NUMPY_NAMES.get(each.datatype, each.datatype.lower())),
        )
        for each in inputs
    )


def _onnx_type(types: Any, given: Input) -> Any:
    kinds = {
        "BYTES": types.StringTensorType,
        "FP32": types.FloatTensorType,
        "FP64": types.DoubleTensorType,
        "INT64": types.Int64TensorType,
        "INT32": types.Int32TensorType,
        "BOOL": types.BooleanTensorType,
    }
    if given.datatype not in kinds:
        raise Unusable(f"input {given.name}: skl2onnx takes {', '.join(kinds)}, not {given.datatype}")
    return kinds[given.datatype]([None, *(None if size < 0 else size for size in given.dims)])


def _unpickled(source: Path) -> Any:
    sys.path[:0] = [str(source.resolve().parent), str(Path.cwd())]  # a pickle needs the modules of its classes
    try:
        import joblib  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:
        joblib = None
    try:
        if joblib is not None:
            return joblib.load(source)
        import pickle

        with source.open("rb") as stream:
            return pickle.load(stream)
    except ModuleNotFoundError as error:
        package = {"sklearn": "scikit-learn"}.get(error.name or "", error.name or "joblib").partition(".")[0]
        raise Missing(*(["joblib"] if joblib is None and package != "scikit-learn" else []), package) from error
    except Exception as error:
        if isinstance(error, AttributeError) and "__main__" in str(error):
            raise Unusable(
                f"one of its classes is defined in the script that made it ({error}): move it into a module, import it there, "
                "and save the model again"
            ) from error
        if joblib is None:
            raise Missing("joblib") from error
        raise Unusable(f"it cannot be read: {type(error).__name__}: {error}") from error


def _imported(module: str, package: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and module.startswith(error.name):
            raise Missing(package) from error
        raise Missing(package, error.name or package) from error


ACTIONS: dict[str, Callable[[Task], dict[str, Any]]] = {
    "describe-pickle": describe_pickle,
    "pickle-to-onnx": pickle_to_onnx,
    "xgboost-to-onnx": xgboost_to_onnx,
    "lightgbm-to-onnx": lightgbm_to_onnx,
    "keras-to-onnx": keras_to_onnx,
    "torch-to-onnx": torch_to_onnx,
    "torch-to-torchscript": torch_to_torchscript,
    "torch-program": torch_program,
}


def run(text: str) -> dict[str, Any]:
    """The result of a task."""
    given = json.loads(text)
    inputs = tuple(Input(name, datatype, tuple(dims)) for name, datatype, dims in given["inputs"])
    try:
        return {"facts": ACTIONS[given["action"]](Task(Path(given["source"]), Path(given["target"]), inputs, given["network"]))}
    except Missing as missing:
        return {"missing": list(missing.packages)}
    except Unusable as error:
        return {"error": str(error)}
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    print("\n" + json.dumps(run(sys.argv[1])))
