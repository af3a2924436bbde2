"""Budgets that keep peers within bounds, for all protocols. Sans-IO."""
