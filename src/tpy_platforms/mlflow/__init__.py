"""The MLflow frontend: the protocol of MLflow's scoring server, for models that `tpy import` has made of MLflow's, and for any
other.

frontend      the options, and the port
invocations   the handlers: a body becomes one request to the model, or several of its largest batch
answers       errors in MLflow's form
core          bodies to tensors, and outputs to predictions
"""
