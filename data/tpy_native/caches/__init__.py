"""Compiled caches (`libtritoncache_NAME.so`), in this process or in a separate one (`process`)."""
