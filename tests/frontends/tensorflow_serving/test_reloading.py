"""HandleReloadConfigRequest: which loads a configuration needs, compared with what is served."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.frontends.http.fakes import FakeServices
from tpy.config import ModelConfig, normalise, parse_json
from tpy.errors import InvalidArgument, NotFound
from tpy.messages import ConfigCheck, ConfigProblem, LoadRequest
from tpy_platforms.tensorflow_serving.protos import pb
from tpy_platforms.tensorflow_serving.reloading import reload_models


class Checks:
    """Folders 1 and 2 of model m, whose policy selects `selected`; `problems` of its config.pbtxt."""

    def __init__(self, *problems: ConfigProblem) -> None:
        self.problems = problems
        self.selected = (1,)
        self.raises: InvalidArgument | None = None

    async def check_config(self, model_name: str, config: str | None = None) -> ConfigCheck:
        if self.raises is not None:
            raise self.raises
        return ConfigCheck(
            problems=self.problems,
            file="config.pbtxt",
            config_json='{"name": "m", "backend": "identity"}',
            versions=(1, 2),
            selected=self.selected,
        )


class Server:
    """Model m, which loads change."""

    def __init__(self, *problems: ConfigProblem) -> None:
        self.services = FakeServices()
        self.checks = self.services.checks = Checks(*problems)
        self.served = ModelConfig(name="m", backend="identity")
        self.services.inference.config = lambda *_: self.served  # type: ignore[method-assign]

    async def reload(self, **said: Any) -> list[LoadRequest]:
        """The loads of a configuration."""
        loads = self.services.repository.loads
        loads.clear()
        config = pb.ModelServerConfig(model_config_list={"config": [{"name": "m", **said}]})
        await reload_models(self.services, config)
        if loads and loads[-1].config_json:
            self.served = normalise(parse_json(loads[-1].config_json))
        return loads


LATEST: dict[str, Any] = {"latest": {"num_versions": 1}}
ALL: dict[str, Any] = {"all": {}}
FIRST: dict[str, Any] = {"specific": {"versions": [1]}}


@pytest.mark.parametrize("policy", [LATEST, ALL, FIRST])
async def test_a_model_that_is_served_as_it_is_said_is_left_alone(policy: dict[str, Any]) -> None:
    server = Server()
    said = {"model_version_policy": policy, "version_labels": {"stable": 1}}
    [load] = await server.reload(**said)
    document = json.loads(load.config_json or "")
    assert {key: value for key, value in document["version_policy"].items() if value is not None} == policy
    assert not await server.reload(**said)
    assert not await server.reload(version_labels={"stable": 1})
    assert not await server.reload()
    assert await server.reload(**{**said, "version_labels": {"stable": 2}}), "a label is moved"
    assert await server.reload(model_version_policy={"specific": {"versions": [1, 2]}}), "another policy"


async def test_a_version_that_has_come_is_loaded() -> None:
    server = Server()
    assert await server.reload(model_version_policy=ALL)
    server.checks.selected = (1, 2)
    assert await server.reload(model_version_policy=ALL)


async def test_errors_of_a_configuration_are_not_replaced() -> None:
    error = ConfigProblem(severity="error", message="expected a number", field="max_batch_size", line=3)
    warning = ConfigProblem(severity="warning", message="never read", field="x")
    server = Server(warning, error)
    for said in ({"model_version_policy": ALL}, {"version_labels": {"stable": 1}}):
        with pytest.raises(InvalidArgument, match=r"model 'm': config\.pbtxt:3: max_batch_size: expected a number"):
            await server.reload(**said)
    assert not server.services.repository.loads
    policy = ConfigProblem(severity="error", message="no version", field="version_policy")
    server = Server(warning, policy)
    assert await server.reload(model_version_policy=ALL), "the wrong policy is not used"
    with pytest.raises(InvalidArgument, match="no version"):
        await Server(policy).reload(version_labels={"stable": 1})


async def test_why_a_model_cannot_be_found() -> None:
    server = Server()
    server.checks.raises = InvalidArgument("no model repository has a model 'm'; expected one")
    with pytest.raises(NotFound, match="model 'm' is not in the model repository; base_path is not read"):
        await server.reload(model_version_policy=ALL)
    server.checks.raises = InvalidArgument("2 model repositories have a model 'm'; expected one")
    with pytest.raises(InvalidArgument, match="2 model repositories have"):
        await server.reload(model_version_policy=ALL)
