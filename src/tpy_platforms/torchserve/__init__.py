"""The TorchServe frontend: inference and management as TorchServe's clients ask for them, for models that `tpy import` has made
of its archives.

frontend      the options, and the port
predictions   inference
management    which models there are, how they are served, and changes of that
answers       errors in TorchServe's form
versions      TorchServe's names of versions
"""
