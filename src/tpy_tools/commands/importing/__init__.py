"""`tpy import SOURCE`: makes model folders of what another server serves.

Three steps: a reader (`hugging_face`, `mlflow`, `mlserver`, `openvino_server`, `tensorflow_serving`, `torchserve`) collects facts
of SOURCE and runs nothing of it; a module of `core` plans from these facts, without touching a file, what becomes of each part
and what cannot be carried over; `writing` performs the plan. `ts` and `mls` do not run in this program: models made of
TorchServe's archives and of MLServer's classes get a copy of them.
"""
