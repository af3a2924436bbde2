"""Models under a memory budget: loaded when they are asked for, unloaded when others need their room."""
