"""The TensorFlow Serving frontend: inference and model status as TensorFlow Serving's clients ask for them, over REST and gRPC,
for any model of the server by its tensors' names.

rest           the REST port: options, routes
predictions    its inference
rows           rows and columns of JSON to arrays, and back
long_arrays    rows of large bodies
answers        errors in its form
grpc           the gRPC port: options, services
calls          its methods
tensors        TensorProto to arrays, and back
examples       tf.Example: those of requests, and what a model answers for them
models         which model a request is for, and its signature
status         the states and the description of a model
protos         the classes of messages
"""
