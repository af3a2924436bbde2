"""A method that a route does not take is refused on every port, with those that it takes (RFC 9110, 15.5.6)."""

from __future__ import annotations

import re

import pytest
from quart_trio import QuartTrio

from .applications import applications


@pytest.mark.parametrize(("name", "app"), list(applications()), ids=lambda value: value if isinstance(value, str) else "")
async def test_the_answer_names_the_methods(name: str, app: QuartTrio) -> None:
    rule = next(rule for rule in app.url_map.iter_rules() if "DELETE" not in (rule.methods or ()))
    answer = await app.test_client().delete(re.sub("<[^>]*>", "1", rule.rule))
    assert answer.status_code == 405, name
    assert set(answer.headers["Allow"].split(", ")) >= set(rule.methods or ()) - {"OPTIONS"}
