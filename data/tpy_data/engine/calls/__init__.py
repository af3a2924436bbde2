"""Requests that models send to other models."""
