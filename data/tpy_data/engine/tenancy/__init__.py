"""The file of tenants, as the engine has it, and their metrics."""
