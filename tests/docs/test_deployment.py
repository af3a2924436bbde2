"""The examples of units, images and manifests: what is there to be checked without systemd and containers."""

from __future__ import annotations

import configparser
import re

from tpy.cli.flags import FLAGS

from .pages import ROOT

EXAMPLES = ROOT / "docs" / "examples"


def test_flags_of_the_examples_exist() -> None:
    known = {f"--{flag.name}" for flag in FLAGS}
    for name in ("systemd/tpy.service", "container/kubernetes.yaml"):
        used = set(re.findall(r"--[a-z][a-z-]+(?==)", (EXAMPLES / name).read_text()))
        assert used, name
        assert used <= known, name


def test_the_unit() -> None:
    """It waits longer than the server does, and reloads as the server does."""
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]  # as documented
    unit.read(EXAMPLES / "systemd" / "tpy.service")
    service = unit["Service"]
    exit_s = re.search(r"--exit-timeout-secs=(\d+)", service["ExecStart"])
    assert exit_s is not None
    assert int(service["TimeoutStopSec"]) > int(exit_s[1])
    assert service["Type"] == "notify"
    assert service["ExecReload"].endswith("-HUP $MAINPID")
    log = re.search(r"--log-file=(\S+)", service["ExecStart"])
    assert log is not None
    assert (EXAMPLES / "systemd" / "tpy.logrotate").read_text().startswith(f"{log[1]} {{")


def test_the_image_runs_as_the_user_that_the_manifest_names() -> None:
    image = (EXAMPLES / "container" / "Dockerfile").read_text()
    user = re.search(r"^USER (\d+):\d+$", image, re.MULTILINE)
    assert user is not None
    assert f"runAsUser: {user[1]}\n" in (EXAMPLES / "container" / "kubernetes.yaml").read_text()
    assert image.count("FROM ") == 2
    assert ".git" in (ROOT / ".dockerignore").read_text().splitlines()
