"""Fuzzing of the control plane: its core against a naive rule, the state store against its table, settling."""
