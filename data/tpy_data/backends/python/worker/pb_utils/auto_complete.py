"""pb_utils.ModelConfig: what auto_complete_config reads and fills in. Texts are Triton's."""

from __future__ import annotations

import json
from typing import Any

Properties = dict[str, Any]


class ModelConfig:
    """A model's configuration in its JSON form."""

    def __init__(self, model_config: str) -> None:
        self._config: Properties = json.loads(model_config)

    def as_dict(self) -> Properties:
        """The configuration. Changes made to it directly count only if the setters could have made them."""
        return self._config

    def set_max_batch_size(self, max_batch_size: int) -> None:
        """Raises ValueError when the configuration says a larger one."""
        given = self._config["max_batch_size"]
        if given > max_batch_size:
            raise ValueError(
                f"configuration specified max_batch_size {given}, but in auto-complete-config function for model "
                f"'{self._name}' specified max_batch_size {max_batch_size}"
            )
        self._config["max_batch_size"] = max_batch_size

    def set_dynamic_batching(self) -> None:
        """Raises ValueError when the configuration has another scheduler."""
        for other in ("sequence_batching", "ensemble_scheduling"):
            if other in self._config:
                raise ValueError(
                    f"Configuration specified scheduling_choice as '{other}', but auto-complete-config function for model "
                    f"'{self._name}' tries to set scheduling_choice as 'dynamic_batching'"
                )
        self._config.setdefault("dynamic_batching", {})

    def add_input(self, input: Properties) -> None:
        """Add or complete an input: name, data_type, dims, optional. Raises ValueError for contradictions."""
        self._check(input, "input", ("name", "data_type", "dims", "optional"), "'name', 'data_type', 'dims' and 'optional'")
        self._merge(input, "input")

    def add_output(self, output: Properties) -> None:
        """Add or complete an output: name, data_type, dims. Raises ValueError for contradictions."""
        self._check(output, "output", ("name", "data_type", "dims"), "'name', 'data_type' and 'dims'")
        self._merge(output, "output")

    def set_model_transaction_policy(self, transaction_policy_dict: Properties) -> None:
        """Set `decoupled`. Raises ValueError when the configuration says otherwise, or for another property."""
        if any(known != "decoupled" for known in transaction_policy_dict):
            raise ValueError(
                f"model transaction property in auto-complete-config function for model '{self._name}' contains property "
                "other than 'decoupled'."
            )
        policy = self._config.setdefault("model_transaction_policy", {})
        if "decoupled" not in transaction_policy_dict:
            return
        wanted = transaction_policy_dict["decoupled"]
        if policy.setdefault("decoupled", wanted) != wanted:
            raise ValueError(
                f"trying to change decoupled property in auto-complete-config for model '{self._name}', which is already set "
                f"to '{policy['decoupled']}'."
            )

    @property
    def _name(self) -> str:
        return str(self._config["name"])

    def _check(self, tensor: Properties, role: str, known: tuple[str, ...], listed: str) -> None:
        where = f"in auto-complete-config function for model '{self._name}'"
        if any(key not in known for key in tensor):
            raise ValueError(f"{role} '{tensor.get('name', '')}' {where} contains property other than {listed}.")
        if "name" not in tensor:
            raise ValueError(f"{role} {where} is missing 'name' property.")
        for key in ("data_type", "dims"):
            if key not in tensor:
                raise ValueError(f"{role} '{tensor['name']}' {where} is missing '{key}' property.")

    def _merge(self, tensor: Properties, role: str) -> None:
        listed = self._config.setdefault(role, [])
        for present in listed:
            if present["name"] == tensor["name"]:
                self._check_agreement(present, tensor, role)
                present.update(tensor)
                return
        listed.append(tensor)

    def _check_agreement(self, present: Properties, tensor: Properties, role: str) -> None:
        given_type = present.get("data_type", "TYPE_INVALID")
        if given_type not in ("TYPE_INVALID", tensor["data_type"]):
            raise ValueError(
                f"unable to load model '{self._name}', configuration expects datatype {given_type} for {role} "
                f"'{tensor['name']}', model provides {tensor['data_type']}"
            )
        for key in ("dims", "optional"):
            given = present.get(key)
            missing = not given if key == "dims" else given is None
            if missing or key not in tensor or given == tensor[key]:
                continue
            raise ValueError(
                f"model '{self._name}', tensor '{tensor['name']}': the model expects {key} {tensor[key]} but the model "
                f"configuration specifies {key} {given}"
            )
