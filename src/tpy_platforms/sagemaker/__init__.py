"""The SageMaker frontend: one model at `/invocations`, or many that SageMaker loads, asks and unloads (multi-model endpoints).

frontend    the options, and the port
api         the routes
models      the models that SageMaker has loaded, and where their files are
"""
