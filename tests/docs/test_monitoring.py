"""The dashboard and the alert rules fit the server: tests/e2e/test_prometheus.py has a Prometheus read them."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from tpy.telemetry.exposition import MetricKind
from tpy.telemetry.host import SERVER_FAMILIES

from .monitoring import FOLDER, RULES, dashboard, expressions, names_in, panels, rules

PANEL_TYPES = {"timeseries", "heatmap", "bargauge", "stat", "gauge", "table"}
"""Those of Grafana that this dashboard may use: each comes with it."""


def series() -> set[str]:
    """The names of all series that a server exports."""
    found = set()
    for name, kind in SERVER_FAMILIES.items():
        found.add(name)
        if kind in (MetricKind.HISTOGRAM, MetricKind.SUMMARY):
            found |= {f"{name}_count", f"{name}_sum"}
        if kind is MetricKind.HISTOGRAM:
            found |= {f"{name}_bucket"}
            found.discard(name)
    return found


def test_every_name_is_one_that_the_server_exports() -> None:
    variables = [variable["definition"] for variable in dashboard()["templating"]["list"] if "definition" in variable]
    used = set().union(*map(names_in, [*expressions(), *variables, *(rule["expr"] for rule in rules())]))
    assert used <= series()
    assert len(used) > 25
    assert not names_in("nv_inference_request_succes") <= series()


def test_the_dashboard_is_one_of_grafana() -> None:
    """As far as its schema can be checked without Grafana: what its own files of dashboards have."""
    found = dashboard()
    assert found["schemaVersion"] >= 39
    assert re.fullmatch(r"[\w-]{1,40}", found["uid"])
    assert "id" not in found, "Grafana gives it"
    everything = found["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    assert {panel["type"] for panel in everything} <= {"row", *PANEL_TYPES}
    for panel in everything:
        place = panel["gridPos"]
        assert 0 <= place["x"] < place["x"] + place["w"] <= 24, panel["title"]
    for one, other in itertools.combinations(everything, 2):
        assert not overlap(one["gridPos"], other["gridPos"]), (one["title"], other["title"])
    variables = {variable["name"]: variable["type"] for variable in found["templating"]["list"]}
    assert variables == {"datasource": "datasource", "instance": "query", "model": "query"}
    for panel in panels():
        assert panel["title"]
        assert panel["targets"]
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert set(re.findall(r"\$(\w+)", target["expr"])) <= {*variables, "__rate_interval"}


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    return all(one[at] < other[at] + other[size] and other[at] < one[at] + one[size] for at, size in (("x", "w"), ("y", "h")))


def test_alert_rules_say_what_is_the_matter() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert "{{ $labels." in rule["annotations"]["summary"]


def test_compose_has_prometheus_and_grafana_read_them() -> None:
    services = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    mounted = {text.split(":")[0].removeprefix("./"): text.split(":")[1] for s in services.values() for text in s["volumes"]}
    config = yaml.safe_load((FOLDER / "prometheus.yml").read_text())
    assert config["rule_files"] == [Path(mounted["alerts.yml"]).name]
    assert Path(mounted["alerts.yml"]).parent == Path(mounted["prometheus.yml"]).parent
    assert config["scrape_configs"][0]["job_name"] in RULES.read_text(), "the job of TpyDown"
    [provider] = yaml.safe_load((FOLDER / "grafana-dashboards.yml").read_text())["providers"]
    assert mounted["grafana-dashboard.json"].startswith(provider["options"]["path"] + "/")


FIRING: list[dict[str, Any]] = [
    {
        "alert": "TpyModelFails",
        "input": {
            'nv_inference_request_failure{instance="a",model="m",reason="BACKEND"}': "0+10x15",
            'nv_inference_request_success{instance="a",model="m"}': "0+90x15",
        },
        "labels": {"severity": "critical", "instance": "a", "model": "m"},
        "summary": "m fails 10% of its requests",
    },
    {
        "alert": "TpyQueueFull",
        "input": {'tpy_inference_refused_total{instance="a",model="m",reason="QUEUE_FULL"}': "0+60x15"},
        "labels": {"severity": "warning", "instance": "a", "model": "m"},
        "summary": "m refuses 1 requests a second: its queue is full",
    },
    {
        "alert": "TpySlow",
        "input": {
            'tpy_inference_request_duration_seconds_bucket{instance="a",model="m",le="1"}': "0+0x15",
            'tpy_inference_request_duration_seconds_bucket{instance="a",model="m",le="2"}': "0+60x15",
            'tpy_inference_request_duration_seconds_bucket{instance="a",model="m",le="+Inf"}': "0+60x15",
        },
        "labels": {"severity": "warning", "instance": "a", "model": "m"},
        "summary": "one request in a hundred to m takes more than 1.99s",
    },
    {
        "alert": "TpyQueueSlow",
        "input": {
            'nv_inference_queue_duration_us{instance="a",model="m"}': "0+12000000x15",
            'nv_inference_request_success{instance="a",model="m"}': "0+60x15",
        },
        "labels": {"severity": "warning", "instance": "a", "model": "m"},
        "summary": "requests wait 200k us in the queue of m, on average",
    },
    {
        "alert": "TpyDown",
        "input": {'up{job="tpy",instance="a"}': "1x3 0x12"},
        "labels": {"severity": "critical", "instance": "a", "job": "tpy"},
        "summary": "a does not answer on its metrics port",
    },
    {
        "alert": "TpyRequestsMalformed",
        "input": {'tpy_inference_refused_total{instance="a",model="m",reason="INVALID"}': "0+120x15"},
        "labels": {"severity": "warning", "instance": "a", "model": "m"},
        "summary": "clients send m 2 requests a second that do not fit its configuration",
    },
    {
        "alert": "TpyExecutionHangs",
        "input": {'tpy_model_long_execution_seconds{instance="a",model="m"}': "0x5 90x10"},
        "labels": {"severity": "critical", "instance": "a", "model": "m"},
        "summary": "an instance of m has been executing for 1m 30s",
    },
    {
        "alert": "TpyInstanceCrashLoop",
        "input": {'tpy_instance_restarts_total{instance="a",model="m"}': "0x5 0+2x10"},
        "labels": {"severity": "critical", "instance": "a", "model": "m"},
        "summary": "instances of m were started again 12 times in ten minutes",
    },
    {
        "alert": "TpyModelLeaks",
        "input": {'tpy_model_leaking_instances{instance="a",model="m"}': "0x5 2x10"},
        "labels": {"severity": "warning", "instance": "a", "model": "m"},
        "summary": "memory of m grows with each request: tpy explain m",
    },
    {
        "alert": "TpyServerLeaks",
        "input": {'tpy_server_leaks{instance="a"}': "0x5 1x10"},
        "labels": {"severity": "warning", "instance": "a"},
        "summary": "the server's own process on a grows with each request: its log names the models in it",
    },
    {
        "alert": "TpyRepositoryUnreachable",
        "input": {'tpy_repository_reachable{instance="a",repository="s3://b"}': "0x15"},
        "labels": {"severity": "warning", "instance": "a", "repository": "s3://b"},
        "summary": "s3://b does not answer: models cannot be loaded from it",
    },
    {
        "alert": "TpyGpuMemoryFull",
        "input": {
            'nv_gpu_memory_used_bytes{instance="a",gpu_uuid="GPU-1"}': "96x15",
            'nv_gpu_memory_total_bytes{instance="a",gpu_uuid="GPU-1"}': "100x15",
        },
        "labels": {"severity": "warning", "instance": "a", "gpu_uuid": "GPU-1"},
        "summary": "GPU-1 has 96% of its memory in use",
    },
]


def test_every_alert_is_tried() -> None:
    assert sorted(each["alert"] for each in FIRING) == sorted(rule["alert"] for rule in rules())


def test_alerts_fire_when_they_should_and_not_before(tmp_path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian's package prometheus has it)")
    tests = []
    for each in FIRING:
        alert = {"exp_labels": each["labels"], "exp_annotations": {"summary": each["summary"]}}
        tests.append(
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in each["input"].items()],
                "alert_rule_test": [
                    {"eval_time": "3m", "alertname": each["alert"], "exp_alerts": []},
                    {"eval_time": "12m", "alertname": each["alert"], "exp_alerts": [alert]},
                ],
            }
        )
    idle = {'nv_inference_request_success{instance="a",model="m"}': "0+60x15", 'up{job="tpy",instance="a"}': "1x15"}
    tests.append(
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in idle.items()],
            "alert_rule_test": [{"eval_time": "12m", "alertname": rule["alert"], "exp_alerts": []} for rule in rules()],
        }
    )
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
