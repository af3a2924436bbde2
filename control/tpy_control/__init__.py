"""The control plane: decides *what should be served* and never how.

It reads model repositories, applies version policies and load / unload requests, and writes the desired half of the
model-state store (`tpy.state`). It never imports `tpy_data` or a backend, and never touches a model's weights.
"""
