"""Sizes: how large a model will be, by what was measured and by its files."""

from __future__ import annotations

import msgspec

from tpy_data.engine.budget.core.sizes import KeptSize, KeptSizes, Measurement, ModelFiles, Sizes


def test_sizes_are_remembered_by_fingerprint_and_estimated_by_backend() -> None:
    sizes = Sizes({"m:1": KeptSize("one", "onnxruntime", 500, 100)})
    assert sizes.expected("m:1", "onnxruntime", ModelFiles("one", 100)) == (500, {})
    assert sizes.expected("m:1", "onnxruntime", ModelFiles("other", 150)) == (150 + 400, {})
    assert sizes.expected("n:1", "python", ModelFiles("x", 7)) == (7, {})
    assert sizes.measured("n:1", "python", ModelFiles("x", 7), Measurement(1000)) == (1000, {})
    assert sizes.expected("o:1", "python", ModelFiles("y", 20)) == (20 + 993, {})
    assert sizes.measured("n:1", "python", ModelFiles("x", 7), Measurement(0)) == (500, {}), (
        "memory that is used again does not show: it counts half"
    )
    assert sizes.measured("n:1", "python", ModelFiles("z", 70), Measurement(10)) == (70, {}), "no model is smaller than its files"
    assert Sizes(sizes.kept().models).expected("n:1", "python", ModelFiles("z", 70)) == (70, {})


def test_sizes_on_gpus_are_remembered_and_estimated() -> None:
    sizes = Sizes({})
    assert sizes.expected("m:1", "python", ModelFiles("one", 100), [0, 2]) == (100, {0: 100, 2: 100})
    assert sizes.measured("m:1", "python", ModelFiles("one", 100), Measurement(300, {0: 400})) == (300, {0: 400})
    assert sizes.expected("m:1", "python", ModelFiles("one", 100), [0, 2]) == (300, {0: 400}), "it was measured"
    assert sizes.expected("n:1", "python", ModelFiles("x", 10), [1]) == (210, {1: 10})
    assert sizes.measured("m:1", "python", ModelFiles("one", 100), Measurement(300, {0: 200})) == (300, {0: 300})
    content = msgspec.json.encode(sizes.kept())
    kept = msgspec.json.decode(content, type=KeptSizes)
    assert Sizes(kept.models).expected("m:1", "python", ModelFiles("one", 100)) == (300, {0: 300})


def test_growth_of_a_gpu_is_no_less_than_files_and_remembered_as_its_budget_at_most() -> None:
    sizes = Sizes({}, {0: 600})
    one = ModelFiles("one", 100)
    for shown, counts in ((400, 400), (0, 200), (0, 100), (0, 100)):
        assert sizes.measured("m:1", "python", one, Measurement(300, {}, {0: shown})) == (300, {0: counts})
    assert sizes.measured("m:1", "python", one, Measurement(300, {}, {0: 700, 1: 700})) == (300, {0: 700, 1: 700})
    assert sizes.expected("m:1", "python", one, [0, 1]) == (300, {0: 600, 1: 700}), "GPU 1 has no budget"
    large = ModelFiles("large", 900)
    sizes.measured("l:1", "python", large, Measurement(900, {}, {0: 0}))
    assert sizes.expected("l:1", "python", large, [0]) == (900, {0: 900}), "its files alone are too large"
    assert sizes.measured("n:1", "python", one, Measurement(300, {0: 700, 1: 50})) == (300, {0: 700, 1: 50})
    assert sizes.expected("n:1", "python", one, [0, 1]) == (300, {0: 700, 1: 50}), "it is known to be the model's"


def test_sizes_from_before_gpus_had_budgets_have_their_files_there() -> None:
    kept = msgspec.json.decode(b'{"format":1,"models":{"m:1":{"fingerprint":"f","backend":"b","bytes":500,"file_bytes":100}}}')
    sizes = Sizes(msgspec.convert(kept, KeptSizes).models)
    assert sizes.expected("m:1", "b", ModelFiles("f", 100), [0, 2]) == (500, {0: 100, 2: 100})
    assert sizes.measured("m:1", "b", ModelFiles("f", 100), Measurement(500, {}, {0: 70})) == (500, {0: 100})
