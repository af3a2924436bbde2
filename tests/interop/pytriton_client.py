"""PyTriton's client as a program of its own: run by the Python that has PyTriton. Arguments: HTTP and gRPC address."""

import sys

import numpy as np
from pytriton.client import DecoupledModelClient, FuturesModelClient, ModelClient
from pytriton.client.exceptions import PyTritonClientTimeoutError
from pytriton.client.utils import create_client_from_url, wait_for_model_ready, wait_for_server_ready

http, grpc = sys.argv[1:]
row = np.arange(16, dtype=np.float32)
for url in (f"http://{http}", f"grpc://{grpc}"):
    client = create_client_from_url(url)
    wait_for_server_ready(client, timeout_s=20)
    wait_for_model_ready(client, "affine", timeout_s=20)
    with ModelClient(url, "affine", init_timeout_s=20) as model:
        assert model.model_config.max_batch_size == 8, model.model_config
        assert np.array_equal(model.infer_sample(row)["OUTPUT0"], 2 * row)
        assert np.array_equal(model.infer_batch(INPUT0=np.stack([row, row]))["OUTPUT0"], 2 * np.stack([row, row]))
    with ModelClient(url, "affine", lazy_init=False, model_version="1", init_timeout_s=20) as model:
        assert np.array_equal(model.infer_sample(INPUT0=row)["OUTPUT0"], 2 * row)
    try:
        with ModelClient(url, "not_there", init_timeout_s=2) as model:
            model.infer_sample(row)
    except PyTritonClientTimeoutError:
        pass
    else:
        raise AssertionError("a model that is not there")
with FuturesModelClient(f"http://{http}", "affine", max_workers=4) as futures:
    asked = [futures.infer_sample(row + number) for number in range(32)]
    assert all(np.array_equal(future.result(20)["OUTPUT0"], 2 * (row + number)) for number, future in enumerate(asked))
with DecoupledModelClient(f"grpc://{grpc}", "repeat_int32", init_timeout_s=20) as decoupled:
    values = np.arange(4, dtype=np.int32)
    answers = decoupled.infer_sample(IN=values, DELAY=np.ones(4, np.uint32), WAIT=np.ones(1, np.uint32))
    assert [int(answer["OUT"][0]) for answer in answers] == [0, 1, 2, 3]
print("PASS: PyTriton's client")
