"""Sans-IO decisions of the engine: what to load, switch, resize, unload and forget."""

from tpy_data.engine.core.plan import Action, Forget, Load, Phase, Resize, Running, Unload, plan

__all__ = ["Action", "Forget", "Load", "Phase", "Resize", "Running", "Unload", "plan"]
