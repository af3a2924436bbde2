"""Reads a saved estimator, or refuses to: loading a pickle runs code."""

from __future__ import annotations

import importlib.metadata
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from tpy.backend import ModelContext
from tpy.errors import Internal, TpyError, Unavailable, Unsupported
from tpy_backends.contents import contents_of
from tpy_backends.file_backend import model_file
from tpy_backends.parameter_values import parse_boolean

VERSION: Final[str] = importlib.metadata.version("scikit-learn")
"""scikit-learn is imported with the first model only: that takes seconds, and every worker does it again."""

SWITCH: Final = "allow-pickle"
TYPES: Final = "trusted-types"
FILENAMES: Final = ("model.skops", "model.joblib", "model.pkl")

_OTHER_FRAMEWORKS = ("torch", "cupy", "dask")
"""Those of which scikit-learn has adapters."""


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """Things that the operator of the server allows to be loaded: any pickle, or types that skops does not know."""

    pickles: bool = False
    types: tuple[str, ...] = ()


def read_trust(pairs: Mapping[str, str]) -> Trust:
    """Of the `--backend-config` pairs. Raises InvalidArgument."""
    types = tuple(word for word in pairs.get(TYPES, "").split(";") if word)
    return Trust(pickles=parse_boolean(pairs.get(SWITCH, "false")), types=types)


def read_estimator(context: ModelContext, trust: Trust) -> Any:
    """The estimator of a model. What it warns of while it is loaded, such as another version of scikit-learn, is logged.

    Raises Unsupported for a pickle that is not allowed or types that are not trusted, Unavailable for packages that are missing,
    Internal for a file that is not a model.
    """
    path = model_file(context, FILENAMES)
    skops = path.suffix == ".skops"
    if not (skops or trust.pickles):
        raise Unsupported(_refusal(path, context))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            estimator = _read_skops(path, context, trust) if skops else _read_pickle(path)
        except TpyError:
            raise
        except ModuleNotFoundError as error:
            raise Unavailable(
                f"unable to load model '{context.config.name}': '{path.name}' needs the package '{error.name}', which is not "
                "installed where the server runs"
            ) from error
        except Exception as error:
            text = (str(error).splitlines() or [""])[0]
            advice = "" if isinstance(error, MemoryError) else contents_of(path, "sklearn", "it is not a skops or joblib file")
            raise Internal(
                f"unable to load model '{context.config.name}': scikit-learn {VERSION} cannot read '{path.name}': "
                f"{type(error).__name__}: {text}{advice}"
            ) from error
    for warning in told:
        context.log("warning", f"model '{context.config.name}': {str(warning.message).splitlines()[0]}")
    return estimator


def _refusal(path: Path, context: ModelContext) -> str:
    return (
        f"model '{context.config.name}': '{path.name}' is a pickle, which runs whatever code it holds when it is loaded. Start "
        f"the server with --backend-config={context.config.backend},{SWITCH}=true if everybody who can write to the model "
        f"repository may run code here. Without pickles: tpy init NAME --from {path.name}, where the model was trained, makes "
        "an ONNX model of it; skops.io.dump(model, 'model.skops') writes a file that this backend reads without the switch"
    )


def _read_pickle(path: Path) -> Any:
    import joblib

    return joblib.load(path)


def _read_skops(path: Path, context: ModelContext, trust: Trust) -> Any:
    try:
        with _without_adapters():
            from skops import io
    except ImportError as error:
        raise Unavailable(
            f"model '{context.config.name}': '{path.name}' needs skops, which cannot be imported ({error}); install it with "
            "tpy's extra `sklearn`, or `pip install skops`"
        ) from error
    untrusted = [name for name in io.get_untrusted_types(file=path) if name not in trust.types]
    if untrusted:
        raise Unsupported(
            f"model '{context.config.name}': '{path.name}' holds types that skops does not trust: {', '.join(untrusted)}; "
            f"if you do: --backend-config={context.config.backend},{TYPES}={';'.join(untrusted)}"
        )
    return io.load(path, trusted=[*trust.types])


@contextmanager
def _without_adapters() -> Iterator[None]:
    """To list the estimators that there are, skops has scikit-learn import all of its packages, also its adapters of other
    frameworks, which import these: seconds, and hundreds of megabytes. They are left out here, and can be imported later."""
    prefix = "sklearn.externals.array_api_compat"
    hidden = [name for framework in _OTHER_FRAMEWORKS if (name := f"{prefix}.{framework}") not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]  # None: it cannot be imported
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
