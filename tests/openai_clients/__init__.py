"""Clients of OpenAI's API other than OpenAI's own, as they are."""
