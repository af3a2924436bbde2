"""Trees of XGBoost, LightGBM and scikit-learn: the published suite, answers equal to those of the libraries themselves, what is
completed, and what goes wrong."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.hosted import Log, completed, context_of, inputs, outputs, parameters, run
from tpy.backend import Backend, BackendSettings, InstancePlacement, ModelContext
from tpy.config.model_config import DynamicBatching, InstanceKind
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable, Unsupported
from tpy.messages import DataType
from tpy.testing import HostedModel
from tpy.testing.conformance import BackendConformance, BackendUnderTest

pytest.importorskip("treelite", reason="needs treelite: make test-backends")
pytest.importorskip("sklearn", reason="needs scikit-learn: make test-backends")
pytest.importorskip("xgboost", reason="needs XGBoost, which trains the models: make test-backends")
pytest.importorskip("lightgbm", reason="needs LightGBM, which trains the models: make test-backends")

import treelite
from sklearn import ensemble

from tests.backends.fil import models  # imports xgboost and lightgbm
from tests.backends.fil.models import BINARY, CASES, CLASSES, FEATURES, ROWS, VALUES, config
from tpy_backends.fil import create

ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
MATRIX = inputs(("input__0", DataType.FP32, (FEATURES,)))
PROBABILITY = {"is_classifier": "true", "predict_proba": "true"}


def answer(columns: int) -> Any:
    return outputs(("output__0", DataType.FP32, (columns,)))


@pytest.fixture(scope="module")
def backend() -> Backend:
    return create(BackendSettings(name="fil"))


def asked(backend: Backend, context: ModelContext, rows: Any = CASES) -> Any:
    """The output of one request."""
    with HostedModel(backend, context) as model:
        return run(model.instance(ON_CPU), context, input__0=rows)["output__0"]


def served(backend: Backend, root: Path, filename: str, booster: Any, **given: str) -> tuple[ModelContext, Any]:
    """The completed model, and its answer."""
    context = context_of(root, config(parameters=parameters(**given)))
    models.save(booster, context.version_directory / filename)
    context = completed(backend, context)
    return context, asked(backend, context)


def close(made: Any, expected: Any) -> None:
    assert made.dtype == np.float32
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-6)


class TestClasses(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        booster = models.xgboost_model("multi:softprob", CLASSES, num_class=3)
        return BackendUnderTest(
            create=lambda: create(BackendSettings(name="fil")),
            config=config("classes", max_batch_size=8, input=MATRIX, output=answer(3), parameters=parameters(**PROBABILITY)),
            write_model=lambda folder: booster.save_model(folder / "xgboost.json"),
            write_broken_model=lambda folder: (folder / "xgboost.json").write_bytes(b"{"),
            sample=lambda n: {"input__0": ROWS[n : n + 1 + n % 2]},
            expected=lambda given: {"output__0": models.xgboost_answer(booster, given["input__0"])},
            tolerance=1e-5,
        )


class TestValues(BackendConformance):
    @pytest.fixture
    def subject(self) -> BackendUnderTest:
        booster = models.lightgbm_model("regression", VALUES)
        return BackendUnderTest(
            create=lambda: create(BackendSettings(name="fil")),
            config=config("values", max_batch_size=8, input=MATRIX, output=answer(1)),
            write_model=lambda folder: booster.save_model(folder / "model.txt"),
            write_broken_model=lambda folder: (folder / "model.txt").write_bytes(b"tree"),
            sample=lambda n: {"input__0": ROWS[n : n + 1 + n % 2]},
            expected=lambda given: {"output__0": booster.predict(given["input__0"]).astype(np.float32)},
            tolerance=1e-5,
        )


@pytest.mark.parametrize("filename", ["xgboost.json", "xgboost.ubj", "xgboost.model"])
@pytest.mark.parametrize(
    ("objective", "labels", "params"),
    [
        ("binary:logistic", BINARY, {}),
        ("binary:logistic", BINARY, {"booster": "dart", "rate_drop": 0.3}),
        ("binary:logistic", BINARY, {"categorical": True}),
        ("reg:squarederror", VALUES, {}),
        ("reg:squarederror", VALUES, {"base_score": 3.5}),
        ("count:poisson", abs(VALUES), {}),
        ("multi:softprob", CLASSES, {"num_class": 3}),
        ("multi:softprob", CLASSES, {"num_class": 3, "multi_strategy": "multi_output_tree", "tree_method": "hist"}),
        ("reg:squarederror", np.stack([VALUES, -VALUES], axis=1), {}),
    ],
)
def test_xgboost(backend: Backend, tmp_path: Path, filename: str, objective: str, labels: Any, params: dict[str, Any]) -> None:
    booster = models.xgboost_model(objective, labels, **params)
    expected = models.xgboost_answer(booster, CASES)
    _, made = served(backend, tmp_path, filename, booster, predict_proba="true")
    if objective.startswith("binary"):
        expected = np.stack([1 - expected, expected], axis=1)
    close(made, expected)


@pytest.mark.parametrize(
    ("objective", "labels", "params"),
    [
        ("binary", BINARY, {}),
        ("binary", BINARY, {"boosting": "dart"}),
        ("binary", BINARY, {"boosting": "rf", "bagging_freq": 1, "bagging_fraction": 0.7}),
        ("regression", VALUES, {}),
        ("regression_l1", VALUES, {}),
        ("tweedie", abs(VALUES), {}),
        ("multiclass", CLASSES, {"num_class": 3}),
        ("multiclassova", CLASSES, {"num_class": 3}),
    ],
)
def test_lightgbm(backend: Backend, tmp_path: Path, objective: str, labels: Any, params: dict[str, Any]) -> None:
    booster = models.lightgbm_model(objective, labels, **params)
    expected = booster.predict(CASES)
    _, made = served(backend, tmp_path, "model.txt", booster, predict_proba="true")
    if objective == "binary":
        expected = np.stack([1 - expected, expected], axis=1)
    close(made, expected)


@pytest.mark.parametrize(
    ("estimator", "labels"),
    [
        (ensemble.RandomForestClassifier(5, random_state=0), BINARY),
        (ensemble.ExtraTreesClassifier(5, random_state=0), CLASSES),
        (ensemble.GradientBoostingClassifier(n_estimators=5), CLASSES),
        (ensemble.HistGradientBoostingClassifier(max_iter=5), CLASSES),
        (ensemble.RandomForestRegressor(5, random_state=0), VALUES),
        (ensemble.GradientBoostingRegressor(n_estimators=5), VALUES),
    ],
    ids=lambda each: type(each).__name__,
)
def test_scikit_learn_by_a_checkpoint_of_treelite(backend: Backend, tmp_path: Path, estimator: Any, labels: Any) -> None:
    rows = np.nan_to_num(ROWS)
    trees = treelite.sklearn.import_model(estimator.fit(rows, labels))
    for name, given in (("predict", {}), ("predict_proba", {"predict_proba": "true"})):
        if hasattr(estimator, name):
            context = context_of(tmp_path / name, config(parameters=parameters(**given)))
            trees.serialize(context.version_directory / "checkpoint.tl")
            close(asked(backend, completed(backend, context), rows[:40]), getattr(estimator, name)(rows[:40]))


def test_an_anomaly_is_scored(backend: Backend, tmp_path: Path) -> None:
    rows = np.nan_to_num(ROWS)
    forest = ensemble.IsolationForest(n_estimators=9, random_state=0).fit(rows)
    context = context_of(tmp_path, config())
    treelite.sklearn.import_model(forest).serialize(context.version_directory / "checkpoint.tl")
    close(asked(backend, completed(backend, context), rows[:40]), -forest.score_samples(rows[:40]))


def test_classes_come_as_numbers_unless_probabilities_are_asked_for(backend: Backend, tmp_path: Path) -> None:
    context, made = served(
        backend, tmp_path / "many", "xgboost.ubj", models.xgboost_model("multi:softprob", CLASSES, num_class=3)
    )
    assert context.config.max_batch_size == 4
    assert context.config.dynamic_batching == DynamicBatching()
    assert context.config.input == MATRIX
    assert context.config.output == answer(1)
    assert made.shape == (40,), "as Triton's backend, which leaves out sizes of 1"
    assert set(made.tolist()) == {0.0, 1.0, 2.0}
    booster = models.lightgbm_model("binary", BINARY)
    for threshold in ("0.2", "0.8"):
        _, made = served(backend, tmp_path / threshold, "model.txt", booster, threshold=threshold)
        assert made.tolist() == (booster.predict(CASES) > float(threshold)).tolist()


def test_one_column_or_two_for_a_binary_probability(backend: Backend, tmp_path: Path) -> None:
    booster = models.xgboost_model("binary:logistic", BINARY)
    expected = models.xgboost_answer(booster, CASES)
    for columns, wanted in ((1, expected), (2, np.stack([1 - expected, expected], axis=1))):
        context = context_of(
            tmp_path / str(columns),
            config(max_batch_size=64, input=MATRIX, output=answer(columns), parameters=parameters(**PROBABILITY)),
        )
        booster.save_model(context.version_directory / "xgboost.json")
        close(asked(backend, context), wanted)
    _, made = served(backend, tmp_path / "raw", "xgboost.json", booster, output_class="false")  # the name before 25.09
    close(made, expected)


@pytest.mark.parametrize("threads", ["-1", "1", "2"])
def test_threads_and_empty_batches(backend: Backend, tmp_path: Path, threads: str) -> None:
    booster = models.lightgbm_model("regression", VALUES)
    context, made = served(backend, tmp_path, "model.txt", booster, cpu_nthread=threads)
    close(made, booster.predict(CASES))
    assert asked(backend, context, CASES[:0]).shape == (0,)


def test_more_threads_than_there_may_be_are_fewer(backend: Backend, tmp_path: Path) -> None:
    booster = models.lightgbm_model("regression", VALUES)
    log = Log()
    context = context_of(tmp_path, config(parameters=parameters(cpu_nthread="100000")), log)
    booster.save_model(context.version_directory / "model.txt")
    context = completed(backend, context)
    close(asked(backend, context), booster.predict(CASES))
    assert any("cpu_nthread is " in text for text in log.warnings())


def test_memory_that_is_short_while_loading_costs_the_others_nothing(backend: Backend, tmp_path: Path) -> None:
    booster = models.xgboost_model("reg:squarederror", VALUES)
    other = context_of(tmp_path, config())
    booster.save_model(other.version_directory / "xgboost.json")
    other = completed(backend, other)
    huge = context_of(tmp_path, config("huge"))
    name_size = (1 << 45).to_bytes(8, "little")
    (huge.version_directory / "xgboost.model").write_bytes(bytes(136) + name_size + bytes(100))
    with HostedModel(backend, other) as model:
        instance = model.instance(ON_CPU)
        with pytest.raises(Internal, match=r"unable to load model 'huge': .* 'xgboost.model' .*format, or memory is short"):
            backend.load(huge)
        close(run(instance, other, input__0=CASES)["output__0"], booster.inplace_predict(CASES))


def test_the_type_of_a_file_is_that_of_its_name_unless_the_configuration_says_it(backend: Backend, tmp_path: Path) -> None:
    one, other = models.xgboost_model("reg:squarederror", VALUES), models.lightgbm_model("regression", VALUES)
    context = context_of(tmp_path, config(default_model_filename="trees.bin"))
    models.save(one, context.version_directory / "trees.bin")
    with pytest.raises(
        InvalidArgument, match=r"'trees.bin' does not say what the file is: set model_type to one of xgboost_json,"
    ):
        backend.load(context)
    typed = config(default_model_filename="trees.bin", parameters=parameters(model_type="xgboost_ubj"))
    close(asked(backend, completed(backend, context_of(tmp_path, typed))), models.xgboost_answer(one, CASES))
    both = context_of(
        tmp_path / "both", config(default_model_filename="xgboost.json", parameters=parameters(model_type="lightgbm"))
    )
    one.save_model(both.version_directory / "xgboost.json")
    other.save_model(both.version_directory / "model.txt")
    close(asked(backend, completed(backend, both)), other.predict(CASES))


def test_parameters_for_gpus_are_named(backend: Backend, tmp_path: Path) -> None:
    log = Log()
    given = {"storage_type": "SPARSE", "algo": "NAIVE", "blocks_per_sm": "2", "transfer_threshold": "1", "threads_per_tree": "4"}
    context = context_of(tmp_path, config(parameters=parameters(**given)), log)
    models.lightgbm_model("regression", VALUES).save_model(context.version_directory / "model.txt")
    asked(backend, completed(backend, context))
    assert log.warnings() == [
        "model 'm': parameters algo, blocks_per_sm, storage_type, threads_per_tree, transfer_threshold have no effect on a CPU"
    ]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            {"model_type": "catboost"},
            "'model_type' of model 'm' must be one of xgboost_json, xgboost_ubj, xgboost, lightgbm, tree",
        ),
        ({"is_classifier": "yes"}, "'is_classifier' of model 'm' must be one of true, false, got 'yes'"),
        ({"predict_proba": "1"}, "'predict_proba' of model 'm' must be one of true, false, got '1'"),
        ({"is_classifier": "true", "output_class": "false"}, "contradict each other: is_classifier true, output_class false"),
        ({"threshold": "half"}, "'threshold' of model 'm' must be a number, got 'half'"),
        ({"storage_type": "TINY"}, "'storage_type' of model 'm' must be one of AUTO, DENSE, SPARSE, SPARSE8, got 'TINY'"),
        ({"algo": "FAST"}, "must be one of ALGO_AUTO, NAIVE, TREE_REORG, BATCH_TREE_REORG, got 'FAST'"),
        ({"blocks_per_sm": "many"}, "'blocks_per_sm' of model 'm' must be a whole number, got 'many'"),
        ({"cpu_nthread": "4e9"}, "'cpu_nthread' of model 'm' must be a whole number, got '4e9'"),
    ],
)
def test_a_wrong_parameter_is_refused(backend: Backend, tmp_path: Path, given: dict[str, str], text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        backend.load(context_of(tmp_path, config(parameters=parameters(**given))))


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"input": inputs(("input__0", DataType.FP32, (7,)))}, r"'input__0': .*shape \[-1,6\].*complete shape \[-1,7\]"),
        ({"input": inputs(("input__0", DataType.FP32, (5,)))}, r"'input__0': .*shape \[-1,6\].*complete shape \[-1,5\]"),
        (
            {"input": inputs(("input__0", DataType.INT64, (6,)))},
            "expects datatype TYPE_INT64 for input 'input__0', model provides TYPE_FP32",
        ),
        ({"input": inputs(("x", DataType.FP32, (6,)))}, "unexpected inference input 'x', allowed inputs are: input__0"),
        ({"output": answer(4)}, r"'output__0': .*shape \[-1,3\].*complete shape \[-1,4\]"),
        ({"parameters": {}}, r"'output__0': .*shape \[-1,1\].*complete shape \[-1,3\]"),
    ],
)
def test_configuration_and_file_are_both_shown(backend: Backend, tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    fields = {"max_batch_size": 8, "input": MATRIX, "output": answer(3), "parameters": parameters(**PROBABILITY), **changes}
    context = context_of(tmp_path, config(**fields))
    models.xgboost_model("multi:softprob", CLASSES, num_class=3).save_model(context.version_directory / "xgboost.json")
    with pytest.raises(TpyError, match=text):
        backend.load(context)


def test_shapley_values_are_refused(backend: Backend, tmp_path: Path) -> None:
    fields = {"input": MATRIX, "output": (*answer(1), *outputs(("treeshap_output", DataType.FP32, (7,))))}
    with pytest.raises(Unsupported, match=r"'treeshap_output' is not supported: .* a model.py"):
        backend.load(context_of(tmp_path, config(max_batch_size=8, **fields)))


@pytest.mark.parametrize("kept", [0.0, 0.5, 0.97, 0.999])
@pytest.mark.parametrize("filename", ["xgboost.json", "xgboost.ubj", "xgboost.model", "model.txt", "checkpoint.tl"])
def test_what_is_cut_short_is_refused_with_a_sentence(
    backend: Backend, tmp_path: Path, filename: str, kept: float, capfd: pytest.CaptureFixture[str]
) -> None:
    context = context_of(tmp_path, config(max_batch_size=8, input=MATRIX, output=answer(1)))
    file = context.version_directory / filename
    if filename == "model.txt":
        text = models.lightgbm_model("regression", VALUES).model_to_string().partition("\nfeature_importances")[0]
        file.write_text(text)
    elif filename == "checkpoint.tl":
        rows = np.nan_to_num(ROWS)
        treelite.sklearn.import_model(ensemble.RandomForestRegressor(3).fit(rows, VALUES)).serialize(file)
    else:
        models.save(models.xgboost_model("reg:squarederror", VALUES), file)
    whole = file.read_bytes()
    file.write_bytes(whole[: int(len(whole) * kept)])
    capfd.readouterr()
    with ThreadPoolExecutor(1) as loading, pytest.raises(Internal) as refused:
        loading.submit(backend.load, context).result()
    text = str(refused.value)
    assert capfd.readouterr() == ("", "")
    assert text.startswith(f"unable to load model 'm': treelite {treelite.__version__} cannot read '{filename}' as model_type ")
    assert "\n" not in text
    assert ".cc:" not in text


def test_zeros_that_count_as_missing_are_refused(backend: Backend, tmp_path: Path) -> None:
    context = context_of(tmp_path, config())
    models.lightgbm_model("binary", BINARY, zero_as_missing=True).save_model(context.version_directory / "model.txt")
    with pytest.raises(Unsupported, match=r"'model.txt' counts zeros as missing values \(LightGBM's zero_as_missing\)"):
        backend.load(context)


def test_a_file_that_is_not_there(backend: Backend, tmp_path: Path) -> None:
    context = context_of(tmp_path, config(parameters=parameters(model_type="lightgbm")))
    (context.version_directory / "trees.txt").write_bytes(b"no model")
    with pytest.raises(
        Unavailable, match=r"unable to find '.*model.txt' .*; the folder holds trees.txt; rename trees.txt, or set"
    ):
        backend.load(context)
