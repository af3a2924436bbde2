"""`tpy init NAME --from FILE`: makes a model folder of a trained model.

`command` has its options, `create` is the whole of it. `sources` says what to do with which file, `convert` runs in the
environment of the model, `folder` writes config.pbtxt and the test request.
"""
