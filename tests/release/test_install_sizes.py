"""The table of install sizes: the page is that of the data, every extra is in it, and what grows is named."""

from __future__ import annotations

import tomllib

import msgspec

from release.install_sizes import BASE, EXTRAS, LEFT_OUT, PAGE, ROOT, Installed, Started, grown, page, read

DEVELOPERS = {"bench", "coverage", "dev", "fuzz", "page", "release", "site"}
EXPECTED = Installed({"numpy": 60_000_000, "trio": 1_000_000}, Started(1.0, 1.0, 1))


def test_the_page_is_made_of_the_data() -> None:
    assert PAGE.read_text() == page(read())


def test_every_extra_for_users_is_measured_or_left_out_with_a_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {*EXTRAS, *LEFT_OUT} == {BASE, *project["optional-dependencies"]} - DEVELOPERS
    assert set(read().extras) == set(EXTRAS)


def test_what_has_not_grown_is_not_reported() -> None:
    assert grown(EXPECTED, EXPECTED.distributions) == []
    assert grown(EXPECTED, {"numpy": 66_000_000, "trio": 1_000_000}) == []
    assert grown(EXPECTED, {"numpy": 1}) == []


def test_what_has_grown_is_named() -> None:
    more = {**EXPECTED.distributions, "pandas": 40_000_000}
    assert grown(EXPECTED, more) == [
        "3 distributions, expected at most 2; new: pandas",
        "101 MB, expected at most 67 MB; grown: pandas by 40 MB",
    ]
    larger = {"numpy": 70_000_000, "trio": 1_500_000}
    assert grown(EXPECTED, larger) == ["72 MB, expected at most 67 MB; grown: numpy by 10 MB, trio by 0.5 MB"]


def test_the_page_says_what_an_extra_adds() -> None:
    one = Installed({**EXPECTED.distributions, "onnxruntime": 50_000_000}, Started(1.0, 1.25, 70_000_000))
    told = page(msgspec.structs.replace(read(), extras={BASE: EXPECTED, "cpu": one}))
    assert "tpy alone is 2 packages and 61 MB." in told
    assert "| `cpu` | +1 | +50 MB | 1.2 s | 70 MB | | | |" in told
