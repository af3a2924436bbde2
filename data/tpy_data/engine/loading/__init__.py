"""Loading a model version: files, configuration, placement, warm-up requests. Blocking; runs in loader threads."""
