"""For processes that a model starts: they inherit the worker's sys.path but not its modules, and import this by its name.

In the worker itself the module is there already, so this file is not looked for.
"""

import importlib
import sys

_package = importlib.import_module("tpy_worker_package")
_package.load()
sys.modules[__name__] = importlib.import_module(_package.NAME + ".pb_utils")
