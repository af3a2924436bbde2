"""The data plane: makes what is desired true, and runs requests.

It reads the desired half of the model-state store, loads and unloads models through backends, schedules requests on
instances, and writes the observed half. It never imports `tpy_control` and never decides what should be served.
"""
