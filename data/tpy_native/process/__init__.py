"""A compiled plug-in, other than a backend, in a separate process: a crash or a hang costs that process only.

`plugin_process` is the server's side: it starts the process and has it answer one request after the other. `serving` is the
process' side, `metrics` carries the metrics that the plug-in makes to the server. Backends have workers (`tpy_data.backends`).
"""

from tpy_native.process.plugin_process import PluginGone, PluginProcess

__all__ = ["PluginGone", "PluginProcess"]
