"""Repository agents: they see a model before it is loaded and may refuse it, or put another folder in its place.

`process` is the process of an agent, `lifecycles` leads models through the actions from LOAD to UNLOAD_COMPLETE, `when_needed`
begins that with the first model that has an agent.
The agent `checksum` is this server's own, in `tpy_control.core.agents`.
"""

from tpy_control.agents.when_needed import AgentsWhenNeeded

__all__ = ["AgentsWhenNeeded"]
