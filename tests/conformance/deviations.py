"""Intended deviations from Triton 2.51, case by case. docs/reference/compatibility.md has them in words."""

from __future__ import annotations

import msgspec


class Deviation(msgspec.Struct, frozen=True):
    """The response of tpy instead: the status, and a regular expression that the error text matches ("" = the recorded text)."""

    status: int
    error: str = ""


MALFORMED_IS_400 = frozenset(
    {
        "load with body that is not JSON",
        "not JSON",
        "not an object",
        "no inputs",
        "inputs not a list",
        "id not a string",
        "input without name",
        "input without datatype",
        "input without shape",
        "shape with text",
        "shape negative",
        "data of text",
        "data of float in int",
        "data too many",
        "priority negative",
        "timeout text",
        "classification not a number",
        "trace update: level that is no array",
        "trace update: rate that is a number",
    }
)
"""Triton answers 500 with this text; tpy answers 400 with the same."""

POLL = r"failed to load '(?P<m>\w+)', failed to poll from model repository: "
UNAVAILABLE = r"load failed for model '(?P<m>\w+)': version 1 is at UNAVAILABLE state: "

DEVIATIONS: dict[str, Deviation] = {
    # The reason stands behind Triton's text, with file, line and column.
    "load bad_syntax": Deviation(
        500, POLL + r".*config\.pbtxt:1:17: max_batch_size: 'oops' is not an integer; expected an integer"
    ),
    "load bad_field": Deviation(500, POLL + r".*config\.pbtxt:6:1: no_such_field: ModelConfig has no field 'no_such_field'.*"),
    "load bad_name": Deviation(
        500,
        POLL + r".*config\.pbtxt:1:1: name: unexpected directory name 'bad_name' for model 'other', "
        r"directory name must equal model name",
    ),
    "load unknown": Deviation(500, POLL + r"model not found in any model repository: .*"),
    "load bad_dims": Deviation(
        400,
        UNAVAILABLE + r"Invalid argument: .*:3:\d+: input\[0\]\.dims\[0\]: model input 'INPUT0' dimension must be integer >= 1, "
        r"or -1 to indicate a variable-size dimension for bad_dims\n(.|\n)*",
    ),
    "load bad_type": Deviation(
        400, UNAVAILABLE + r"Invalid argument: .*model input 'X' must specify 'data_type' for bad_type;\n"
    ),
    "load bad_preferred": Deviation(
        400, UNAVAILABLE + r"Invalid argument: .*dynamic batching preferred size must be <= max batch size for bad_preferred.*;\n"
    ),
    "load no_backend": Deviation(
        400,
        UNAVAILABLE + r"Invalid argument: unable to find backend library for backend 'nosuch', "
        r"try specifying runtime on the model configuration\. Available backends: .*;\n",
    ),
    "load no_versions": Deviation(
        400,
        r"load failed for model 'no_versions': at least one version must be available under the version policy of model "
        r"'no_versions'; expected a version folder, such as no_versions/1, with a model file; found nothing\n",
    ),
    # Triton hangs until its stub gives up.
    "load no_file": Deviation(
        400, UNAVAILABLE + r"Internal: Python model file not found in '.*model\.py'; the folder holds .*;\n"
    ),
    # Bad parameters of a load call are the caller's fault, and say what is wrong.
    "load with unknown parameter": Deviation(400, r"unexpected error on creating Triton parameter"),
    "load with file but no config": Deviation(400, POLL + r"files need a configuration; .*"),
    "load with broken config override": Deviation(400, POLL + r"Invalid config override: not JSON: .*"),
    "load with unknown field in config override": Deviation(400, POLL + r"Invalid config override: nosuch: Cannot find field\."),
    # Triton 2.51 counts inputs and does not look at which; it runs the model without its required input.
    "optional: required one missing": Deviation(400, r".* expected number of inputs between 1 and 2 but got 1 inputs for .*"),
    # Triton 2.51 prints an unbalanced bracket.
    "one input too many": Deviation(400, r".*Got input\(s\) \['X','INPUT0'\], but missing required input\(s\) \[\]\. .*"),
    # The texts of Triton 2.73.
    "data too few": Deviation(400, r"Failed to parse 'data' field: shape does not match true shape"),
    "index with wrong ready": Deviation(400, r"Invalid value for 'ready': expected a boolean"),
}
