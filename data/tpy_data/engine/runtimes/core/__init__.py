"""Sans-IO decisions of the engine: what to load, switch, resize, unload and forget."""

from tpy_data.engine.runtimes.core.plan import Action, Forget, Load, Phase, Resize, Running, Unload, plan

__all__ = ["Action", "Forget", "Load", "Phase", "Resize", "Running", "Unload", "plan"]
