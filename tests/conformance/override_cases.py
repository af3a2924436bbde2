"""Configurations of load calls, in every spelling that protobuf's JSON parser might take."""

from __future__ import annotations

_B = '"backend": "python"'

COMPARED = ("max_batch_size", "metric_tags", "parameters", "response_cache", "dynamic_batching")
"""The compared fields of the resulting configuration."""

CASES: tuple[str, ...] = (
    f"{{{_B}}}",
    f"{{{_B},}}",
    "{'backend': 'python'}",
    '{backend: "python"}',
    "{backend: 'python', 'max_batch_size': 3,}",
    f'{{{_B}, "max_batch_size": 1}} x',
    f"{{{_B}}} // comment",
    f"/* comment */{{{_B}}}",
    *(f'{{{_B}, "maxBatchSize": {number}}}' for number in ("2", '"2"', "2.0", "2e0", "2.", "null")),
    *(
        f'{{{_B}, "max_batch_size": {number}}}'
        for number in ("02", "+2", "0x2", ".5", "2.5", "true", '""', '" 2"', '"2 "', "NaN")
    ),
    *(
        f'{{{_B}, "response_cache": {{"enable": {flag}}}}}'
        for flag in ("true", '"true"', '"True"', '"yes"', '"1"', '"0"', "1", "TRUE")
    ),
    f'{{{_B}, "response_cache": null}}',
    f'{{{_B}, "response_cache": []}}',
    *(
        f'{{{_B}, "instance_group": [{{"kind": {kind}, "count": 1}}]}}'
        for kind in ('"kind_cpu"', '"Kind-Cpu"', "2", '"2"', "2.0", "17", '""', "2.5")
    ),
    f'{{{_B}, "instance_group": {{"kind": "KIND_CPU", "count": 1}}}}',
    f'{{{_B}, "instance_group": [{{"kind": "KIND_CPU", "count": 1}},]}}',
    f'{{{_B}, "instance_group": [{{"kind": "KIND_CPU", "count": 1}}, null]}}',
    f'{{{_B}, "instance_group": ""}}',
    *(
        f'{{{_B}, "parameters": {value}}}'
        for value in (
            '{"a": {"string_value": "x"}}',
            '{"a": {"stringValue": "x"}}',
            '{"a": {"string_value": 5}}',
            '{"a": {"string_value": 1.5}}',
            '{"a": {"string_value": true}}',
            '{"a": "x"}',
            '{"a": null}',
            '[{"key": "a", "value": {"string_value": "x"}}]',
        )
    ),
    f'{{{_B}, "metric_tags": {{"a": "\\x41"}}}}',
    f'{{{_B}, "metric_tags": {{"a": "\\u0041"}}}}',
    f'{{{_B}, "metric_tags": {{"a": "\\u00"}}}}',
    f'{{{_B}, "metric_tags": {{"a": "one\ntwo"}}}}',
    f'{{{_B}, "metric_tags": {{"a": "\\ud800"}}}}',
    *(
        f'{{{_B}, "max_batch_size": 1, "dynamic_batching": {{"max_queue_delay_microseconds": {number}}}}}'
        for number in ("18446744073709551615", "18446744073709551616", "1e3", "-0", "-1", '"7"')
    ),
    *(
        f'{{{_B}, "version_policy": {policy}}}'
        for policy in ("{}", '{"latest": {}}', '{"latest": {"num_versions": 0}}', '{"all": {}}')
    ),
    *("", " ", "[]", '"x"', "null", f"{{{_B}", f"{{{_B}}}}}", f'{{{_B} "max_batch_size": 1}}', '{"backend""python"}', "{,}"),
    f'{{{_B}, "unknown": 1}}',
    f'{{{_B}; "max_batch_size": 1}}',
    '{"backend" = "python"}',
)
