"""Compares two configurations of a model."""

from __future__ import annotations

import msgspec

from tpy.config.model_config import ModelConfig


def only_instances_differ(old: ModelConfig, new: ModelConfig) -> bool:
    """Returns True if only instance_group, version_policy or both changed: then loaded versions can stay.

    False for equal configurations. Both must have been normalised to the same degree.
    """
    return old != new and _without_instances(old) == _without_instances(new)


def _without_instances(config: ModelConfig) -> ModelConfig:
    return msgspec.structs.replace(config, instance_group=(), version_policy=None)
