"""Estimators of scikit-learn: the published suite, the switch for pickles, what is completed, and what goes wrong."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.hosted import Log, completed, context_of, inputs, outputs, run
from tpy.backend import Backend, BackendSettings, InstancePlacement, Isolation, ModelContext, default_isolation
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable, Unsupported
from tpy.messages import DataType
from tpy.testing import HostedModel
from tpy.testing.conformance import BackendConformance, BackendUnderTest

pytest.importorskip("sklearn", reason="needs scikit-learn: make test-backends")
pytest.importorskip("skops", reason="needs skops: make test-backends")

import joblib
from sklearn import (
    cluster,
    compose,
    decomposition,
    ensemble,
    feature_extraction,
    linear_model,
    multioutput,
    pipeline,
    preprocessing,
)
from skops import io

from tpy_backends.sklearn import create

ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
ROWS = np.random.default_rng(1).standard_normal((60, 4))
NAMES = np.array(["setosa", "versicolor", "virginica"])[np.digitize(ROWS[:, 0], [-0.5, 0.5])]
FOREST = ensemble.RandomForestClassifier(4, random_state=0).fit(ROWS, NAMES)
LINEAR = linear_model.LogisticRegression().fit(ROWS, NAMES)
MATRIX = inputs(("X", DataType.FP64, (4,)))
CLASSES = outputs(("predict", DataType.BYTES, (1,)), ("predict_proba", DataType.FP64, (3,)))


@pytest.fixture(scope="module")
def backend() -> Backend:
    """One that may load pickles."""
    return create(BackendSettings(name="sklearn", config={"allow-pickle": "true"}))


def config(**fields: Any) -> ModelConfig:
    return ModelConfig(name="m", backend="sklearn", **fields)


def placed(root: Path, estimator: object, log: Log | None = None, **fields: Any) -> ModelContext:
    context = context_of(root, config(**fields), log)
    joblib.dump(estimator, context.version_directory / "model.joblib")
    return context


def asked(backend: Backend, context: ModelContext, **arrays: Any) -> dict[str, Any]:
    with HostedModel(backend, context) as model:
        return run(model.instance(ON_CPU), context, **arrays)


def encoded(texts: Any) -> Any:
    return np.array([str(text).encode() for text in texts], dtype=object).reshape(-1, 1)


class TestClassifier(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        return BackendUnderTest(
            create=lambda: create(BackendSettings(name="sklearn")),
            config=config(max_batch_size=8, input=MATRIX, output=CLASSES),
            write_model=lambda folder: io.dump(LINEAR, folder / "model.skops"),
            write_broken_model=lambda folder: (folder / "model.skops").write_bytes(b"PK"),
            sample=lambda n: {"X": ROWS[n : n + 1 + n % 2]},
            expected=lambda given: {
                "predict": encoded(LINEAR.predict(given["X"])),
                "predict_proba": LINEAR.predict_proba(given["X"]),
            },
        )


class Bomb:
    """Runs code when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self._path,)


@pytest.mark.parametrize("filename", ["model.joblib", "model.pkl"])
def test_pickles_are_refused_before_they_are_read(tmp_path: Path, filename: str) -> None:
    closed = create(BackendSettings(name="sklearn"))
    ran = tmp_path / "ran"
    for call in (closed.load, closed.auto_complete):
        context = context_of(tmp_path, config())
        (context.version_directory / filename).write_bytes(pickle.dumps(Bomb(ran)))
        with pytest.raises(Unsupported) as refused:
            call(context)
        for words in (
            f"'{filename}' is a pickle, which runs whatever code it holds when it is loaded",
            "--backend-config=sklearn,allow-pickle=true if everybody who can write to the model repository may run code here",
            f"tpy init NAME --from {filename}",
            "skops.io.dump",
        ):
            assert words in str(refused.value)
        assert not ran.exists()


def test_workers_are_the_default() -> None:
    assert default_isolation(create) is Isolation.PROCESS


def test_a_wrong_switch_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="failed to convert 'maybe' to boolean"):
        create(BackendSettings(name="sklearn", config={"allow-pickle": "maybe"}))


def test_types_that_skops_does_not_trust_are_named(tmp_path: Path, backend: Backend) -> None:
    context = context_of(tmp_path, config())
    estimator = pipeline.make_pipeline(preprocessing.FunctionTransformer(_twice), linear_model.LinearRegression())
    io.dump(estimator.fit(ROWS, ROWS[:, 0]), context.version_directory / "model.skops")
    with pytest.raises(Unsupported, match=r"'model.skops' holds types that skops does not trust: .*_twice; if you do: "):
        backend.load(context)
    io.dump(FOREST, context.version_directory / "model.skops")
    with pytest.raises(Unsupported, match=r"--backend-config=sklearn,trusted-types=sklearn.tree._tree.Tree$"):
        backend.load(context)
    trusting = create(BackendSettings(name="sklearn", config={"trusted-types": "sklearn.tree._tree.Tree;other"}))
    made = asked(trusting, completed(trusting, context), X=ROWS[:3])
    np.testing.assert_array_equal(made["predict_proba"], FOREST.predict_proba(ROWS[:3]))


def _twice(rows: Any) -> Any:
    return rows * 2


def test_a_classifier_is_completed(backend: Backend, tmp_path: Path) -> None:
    context = completed(backend, placed(tmp_path, FOREST))
    assert (context.config.max_batch_size, context.config.input, context.config.output) == (4, MATRIX, CLASSES)
    made = asked(backend, context, X=ROWS[:3])
    assert made["predict"].tolist() == encoded(FOREST.predict(ROWS[:3])).tolist()
    np.testing.assert_array_equal(made["predict_proba"], FOREST.predict_proba(ROWS[:3]))


@pytest.mark.parametrize(
    ("estimator", "labels", "expected"),
    [
        (linear_model.LinearRegression(), ROWS[:, 0], {"predict": (DataType.FP64, (1,))}),
        (linear_model.LinearRegression(), ROWS[:, :2], {"predict": (DataType.FP64, (2,))}),
        (decomposition.PCA(2), None, {"transform": (DataType.FP64, (2,))}),
        (preprocessing.OneHotEncoder(handle_unknown="ignore"), None, {"transform": (DataType.FP64, (240,))}),
        (cluster.KMeans(3, n_init=1, random_state=0), None, {"predict": (DataType.INT64, (1,))}),
        (linear_model.SGDClassifier(), NAMES, {"predict": (DataType.BYTES, (1,))}),
        (ensemble.IsolationForest(n_estimators=4), None, {"predict": (DataType.INT64, (1,))}),
        (pipeline.make_pipeline(preprocessing.StandardScaler(), linear_model.LogisticRegression()), NAMES == "setosa",
         {"predict": (DataType.BOOL, (1,)), "predict_proba": (DataType.FP64, (2,))}),
    ],
    ids=lambda each: type(each).__name__ if hasattr(each, "fit") else "",
)  # fmt: skip
def test_outputs_are_what_methods_return(
    backend: Backend, tmp_path: Path, estimator: Any, labels: Any, expected: dict[str, tuple[DataType, tuple[int, ...]]]
) -> None:
    context = completed(backend, placed(tmp_path, estimator.fit(ROWS, labels)))
    assert context.config.output == outputs(*((name, *info) for name, info in expected.items()))
    for name, array in asked(backend, context, X=ROWS[:5]).items():
        wanted = getattr(estimator, name)(ROWS[:5])
        wanted = wanted.toarray() if hasattr(wanted, "toarray") else wanted
        if wanted.dtype.kind == "U":
            wanted = encoded(wanted)
        assert array.tolist() == wanted.reshape(5, -1).tolist()


def test_other_methods_and_other_types_of_numbers(backend: Backend, tmp_path: Path) -> None:
    estimator = linear_model.LogisticRegression().fit(ROWS, NAMES)
    fields = {
        "max_batch_size": 8,
        "input": inputs(("rows", DataType.FP32, (4,))),
        "output": outputs(("decision_function", DataType.FP32, (3,))),
    }
    made = asked(backend, placed(tmp_path, estimator, **fields), rows=ROWS[:2].astype(np.float32))["decision_function"]
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, estimator.decision_function(ROWS[:2]), rtol=1e-5)


def test_texts(backend: Backend, tmp_path: Path) -> None:
    texts = ["good film", "bad film", "schön"]
    estimator = pipeline.make_pipeline(feature_extraction.text.TfidfVectorizer(), linear_model.LogisticRegression(C=99))
    context = completed(backend, placed(tmp_path, estimator.fit(texts, ["good", "bad", "good"])))
    assert context.config.input == inputs(("TEXT", DataType.BYTES, (1,)))
    assert asked(backend, context, TEXT=encoded(texts))["predict"].tolist() == [[b"good"], [b"bad"], [b"good"]]


def _by_name() -> Any:
    """A pipeline that was trained with a data frame, and picks its columns by name."""
    pandas = pytest.importorskip("pandas", reason="needs pandas: make test-backends")
    frame = pandas.DataFrame({"size": ROWS[:, 0], "colour": np.where(ROWS[:, 1] > 0, "red", "blue")})
    columns = compose.make_column_transformer(
        (preprocessing.OneHotEncoder(handle_unknown="ignore"), ["colour"]), (preprocessing.StandardScaler(), ["size"])
    )
    return pipeline.make_pipeline(columns, linear_model.LogisticRegression()).fit(frame, NAMES), frame


COLUMNS = inputs(("size", DataType.FP32, (1,)), ("colour", DataType.BYTES, (1,)))


def test_columns_by_name_of_several_types(backend: Backend, tmp_path: Path) -> None:
    estimator, frame = _by_name()
    context = completed(backend, placed(tmp_path, estimator, max_batch_size=8, input=COLUMNS))
    assert context.config.output == CLASSES
    rows = frame.iloc[:5]
    made = asked(
        backend, context, size=rows["size"].to_numpy(np.float32).reshape(-1, 1), colour=encoded(rows["colour"].to_numpy())
    )
    assert made["predict"].tolist() == encoded(estimator.predict(rows)).tolist()
    np.testing.assert_allclose(made["predict_proba"], estimator.predict_proba(rows), rtol=1e-5)


def test_columns_by_name_may_come_as_one_matrix(backend: Backend, tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="needs pandas: make test-backends")
    frame = pandas.DataFrame(ROWS, columns=[*"abcd"])
    columns = compose.make_column_transformer((preprocessing.StandardScaler(), ["b", "d"]))
    estimator = pipeline.make_pipeline(columns, linear_model.LogisticRegression()).fit(frame, NAMES)
    context = completed(backend, placed(tmp_path, estimator))
    assert context.config.input == MATRIX
    assert asked(backend, context, X=ROWS[:5])["predict"].tolist() == encoded(estimator.predict(frame.iloc[:5])).tolist()


@pytest.mark.parametrize("fields", [{"max_batch_size": 8, "input": COLUMNS}, {"max_batch_size": 8, "output": CLASSES}, {}])
def test_columns_by_name_without_pandas_name_the_extra(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    estimator, _ = _by_name()
    context = placed(tmp_path, estimator, **fields)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(
        Unsupported, match=r"^model 'm': the estimator takes its columns by name, .* tpy's extra `pandas`, or `pip"
    ):
        completed(backend, context)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"input": inputs(("X", DataType.FP64, (5,)))}, r"'X': .*shape \[-1,4\].*complete shape \[-1,5\]"),
        (
            {"output": outputs(("predict_proba", DataType.FP64, (2,)))},
            r"'predict_proba': .*shape \[-1,3\].*complete shape \[-1,2\]",
        ),
        (
            {"output": outputs(("predict", DataType.INT64, (1,)))},
            "expects datatype TYPE_INT64 for output 'predict', model provides TYPE_BYTES",
        ),
        (
            {"output": outputs(("label", DataType.BYTES, (1,)))},
            "unexpected inference output 'label', allowed outputs are: apply, predict, predict_log_proba, predict_proba",
        ),
        ({"input": (*MATRIX, *inputs(("Y", DataType.FP64, (1,))))}, "configuration expects 2 inputs, model provides 1"),
    ],
)
def test_configuration_and_estimator_are_both_shown(backend: Backend, tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(TpyError, match=text):
        backend.load(placed(tmp_path, FOREST, **{"max_batch_size": 8, "input": MATRIX, "output": CLASSES, **changes}))


def test_what_is_no_estimator_is_refused(backend: Backend, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="holds an object of type dict, which has none of the methods predict, predict_proba"):
        backend.load(placed(tmp_path / "dict", {"no": "model"}))
    several = multioutput.MultiOutputClassifier(linear_model.LogisticRegression()).fit(ROWS, np.stack([NAMES, NAMES], axis=1))
    with pytest.raises(Unsupported, match="predict_proba of a model with several outputs of classes gives 2 arrays"):
        backend.auto_complete(placed(tmp_path / "several", several))


def test_a_file_that_cannot_be_read(backend: Backend, tmp_path: Path) -> None:
    context = placed(tmp_path, FOREST)
    file = context.version_directory / "model.joblib"
    whole = file.read_bytes()
    for begin in (b"", b"no model", whole[: len(whole) // 2]):
        file.write_bytes(begin)
        with pytest.raises(Internal, match=r"scikit-learn \S+ cannot read 'model.joblib': \w+: "):
            backend.load(context)
    file.write_bytes(b"cnosuchpackage.sub\nThing\n.")
    with pytest.raises(Unavailable, match=r"'model.joblib' needs the package 'nosuchpackage', which is not installed where the"):
        backend.load(context)
    file.rename(file.with_name("iris.joblib"))
    with pytest.raises(Unavailable, match=r"the folder holds iris.joblib; rename iris.joblib, or set default_model_filename"):
        backend.load(context)


def test_another_version_of_scikit_learn_is_a_warning(backend: Backend, tmp_path: Path) -> None:
    log = Log()
    estimator = linear_model.LinearRegression().fit(ROWS, ROWS[:, 0])
    context = placed(tmp_path, estimator, log)
    file = context.version_directory / "model.joblib"
    state = {**estimator.__getstate__(), "_sklearn_version": "1.0.2"}

    class Old:
        def __reduce__(self) -> tuple[Any, ...]:
            return linear_model.LinearRegression, (), state

    file.write_bytes(pickle.dumps(Old()))
    backend.auto_complete(context)
    [warning] = log.warnings()
    assert "Trying to unpickle estimator LinearRegression from version 1.0.2" in warning


class _Huge:
    """Its pickle asks for a petabyte when it is loaded."""

    def __reduce__(self) -> tuple[Any, ...]:
        return np.zeros, ((1 << 50,),)


def test_memory_that_is_short_while_loading_is_the_reason(backend: Backend, tmp_path: Path) -> None:
    context = context_of(tmp_path, config())
    (context.version_directory / "model.pkl").write_bytes(pickle.dumps(_Huge()))
    with pytest.raises(
        Internal, match=r"unable to load model 'm': scikit-learn .* 'model.pkl': .*MemoryError: Unable to allocate"
    ):
        backend.load(context)


IMPORTS = """
import sys
from pathlib import Path
from tests.backends.hosted import context_of
from tpy.backend import BackendSettings
from tpy.config import ModelConfig
from tpy_backends.sklearn import create

backend = create(BackendSettings(name="sklearn"))
assert backend.capabilities.version
print("sklearn" in sys.modules)
backend.auto_complete(context_of(Path(sys.argv[1]), ModelConfig(name="m", backend="sklearn")))
print("sklearn" in sys.modules, *({"torch", "dask", "cupy"} & sys.modules.keys()))
import sklearn.externals.array_api_compat.numpy
assert None not in sys.modules.values()
"""


def test_scikit_learn_is_imported_with_a_model_and_no_other_framework_with_it(tmp_path: Path) -> None:
    context = context_of(tmp_path, config())
    io.dump(linear_model.LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0]), context.version_directory / "model.skops")
    done = subprocess.run([sys.executable, "-c", IMPORTS, str(tmp_path)], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("False\nTrue\n", 0), done.stderr
