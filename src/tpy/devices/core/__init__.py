"""Sans-IO parts."""
