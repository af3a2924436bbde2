"""Applications of Ray Serve that tpy's is compared with."""

# Annotations stay objects: FastAPI reads those of a class that was sent to a worker.
import json
from typing import Any

import numpy as np
from fastapi import FastAPI, Request
from ray import serve
from starlette.responses import JSONResponse

_ANSWER = {"outputs": [{"name": "OUTPUT0", "data": [0] * 16}, {"name": "OUTPUT1", "data": [0] * 16}]}


@serve.deployment(max_ongoing_requests=1000)
class Empty:
    """Reads the body, and answers a constant: what Ray itself costs."""

    async def __call__(self, request: Any) -> JSONResponse:
        await request.body()
        return JSONResponse(_ANSWER)


_api = FastAPI()


@serve.deployment(max_ongoing_requests=1000)
@serve.ingress(_api)
class Tutorial:
    """The form of Ray's and NVIDIA's tutorials: a `tritonserver.Server` in the constructor, asked by a route of FastAPI."""

    def __init__(self, repository: str) -> None:
        from tpy import tritonserver

        self._server = tritonserver.Server(model_repository=repository)
        self._server.start(wait_until_ready=True)
        self._model = self._server.model("simple")

    @_api.post("/v2/models/simple/infer")
    async def infer(self, request: Request) -> dict[str, Any]:
        """One inference from JSON to JSON."""
        document = json.loads(await request.body())
        inputs = {each["name"]: np.array(each["data"], np.int32).reshape(each["shape"]) for each in document["inputs"]}
        outputs = {}
        for response in self._model.infer(inputs=inputs):
            for name, tensor in response.outputs.items():
                outputs[name] = np.from_dlpack(tensor).ravel().tolist()
        return {"outputs": [{"name": name, "data": data} for name, data in outputs.items()]}


empty = Empty.bind()


def tutorial(arguments: dict[str, str]) -> serve.Application:
    """The application builder of the tutorial's form."""
    return Tutorial.bind(arguments["repository"])
