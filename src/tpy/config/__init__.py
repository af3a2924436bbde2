"""Model configuration: parsed, then normalised, then validated, into frozen values.

Parses a config.pbtxt, resolves and validates it, and reports all problems with file, line and column. Never reads a file,
looks at a device or imports a backend: their facts are arguments. The way of a configuration:

    parse_pbtxt / parse_json -> resolve -> normalise -> validate(complete=False)          control plane
    -> the backend completes it -> normalise -> validate -> normalise_instance_groups     data plane
    -> describe, to_json                                                                  frontends
"""

from tpy.config.check import ExtraCheck, Objection, check_text
from tpy.config.describe import describe
from tpy.config.difference import only_instances_differ
from tpy.config.histograms import histogram_buckets
from tpy.config.instance_groups import COMPUTE_CAPABILITY_MIN, instance_names, normalise_instance_groups
from tpy.config.json_form import parse_json, to_json
from tpy.config.model_config import ModelConfig
from tpy.config.normalise import normalise
from tpy.config.not_ready_after import not_ready_after_s
from tpy.config.pbtxt import ParsedConfig, format_pbtxt, parse_pbtxt
from tpy.config.problem import NO_SOURCE, ConfigError, Location, Problem, Severity, Source, errors_of
from tpy.config.request_timeout import RequestTimeout, enforces_timeouts
from tpy.config.resolve import resolve
from tpy.config.validation import validate
from tpy.config.wire import from_message, to_message

__all__ = [
    "COMPUTE_CAPABILITY_MIN",
    "NO_SOURCE",
    "ConfigError",
    "ExtraCheck",
    "Location",
    "ModelConfig",
    "Objection",
    "ParsedConfig",
    "Problem",
    "RequestTimeout",
    "Severity",
    "Source",
    "check_text",
    "describe",
    "enforces_timeouts",
    "errors_of",
    "format_pbtxt",
    "from_message",
    "histogram_buckets",
    "instance_names",
    "normalise",
    "normalise_instance_groups",
    "not_ready_after_s",
    "only_instances_differ",
    "parse_json",
    "parse_pbtxt",
    "resolve",
    "to_json",
    "to_message",
    "validate",
]
