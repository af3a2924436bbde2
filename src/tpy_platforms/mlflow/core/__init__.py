"""Bodies of MLflow's scoring protocol as tensors, and outputs as predictions: values in, values out.

signature     what the configuration says of the MLflow model
columns       a body as named columns, or as rows without names
tensors       columns as the inputs of a model
predictions   outputs as MLflow writes its predictions
"""
