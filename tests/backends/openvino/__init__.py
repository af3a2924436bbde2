"""Tests of the openvino backend."""
