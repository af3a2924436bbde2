"""Hypercorn's configuration for the requests that it hands to the Quart application."""

from __future__ import annotations

import logging

from hypercorn.config import Config

from tpy.frontends.http.options import HttpOptions


def hypercorn_config(options: HttpOptions) -> Config:
    """Nothing in answers that Triton does not send. Hypercorn neither listens nor parses here, so its limits and time-outs have
    nothing to bound."""
    config = Config()
    config.include_date_header = False
    config.include_server_header = False
    config.errorlog = logging.getLogger("tpy.frontends.http.hypercorn")
    return config
