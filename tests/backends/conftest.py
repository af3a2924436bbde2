"""Assertions of the published suite explain themselves like those of a test module.

TensorFlow reads its environment at the first session, which tests of other backends may make before its own has set it."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_OVERRIDE_GLOBAL_THREADPOOL", "1")
pytest.register_assert_rewrite("tpy.testing.conformance")
