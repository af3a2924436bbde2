"""Sources of the models that call models: callers that do what their input names, and callees."""

from __future__ import annotations

CALLER = """
import asyncio
import json
import threading

import numpy as np
import triton_python_backend_utils as pb_utils

IN_INITIALIZE = {}


def ask(value=(1, 2), model="ident", outputs=("OUTPUT0",), dtype=np.int32, name="INPUT0", **more):
    tensor = pb_utils.Tensor(name, np.array(value, dtype))
    return pb_utils.InferenceRequest(model_name=model, inputs=[tensor], requested_output_names=list(outputs), **more)


def text(value, **more):
    more.setdefault("outputs", ("SAID",))
    return ask([value.encode()], name="DO", dtype=np.object_, **more)


def plain(value):
    if isinstance(value, bytes):
        return value.decode()
    return [plain(each) for each in value] if isinstance(value, list) else value


def shown(response):
    error = response.error()
    said = {"has_error": response.has_error()}
    if error is not None:
        said["error"] = error.message()
    outputs = {}
    for tensor in response.output_tensors():
        kept = pb_utils.get_output_tensor_by_name(response, tensor.name())
        outputs[tensor.name()] = [plain(kept.as_numpy().tolist()), kept.is_cpu()]
    said["outputs"] = outputs
    return said


def caught(function, *arguments, **more):
    try:
        return function(*arguments, **more)
    except BaseException as error:
        return {"raised": type(error).__name__, "text": str(error).split("\\n\\nAt:")[0].strip()}


class Cases:
    def one(self):
        return shown(ask().exec())

    def chain(self):
        first = ask().exec()
        second = pb_utils.InferenceRequest(
            model_name="ident", requested_output_names=["OUTPUT0"],
            inputs=[pb_utils.Tensor("INPUT0", pb_utils.get_output_tensor_by_name(first, "OUTPUT0").as_numpy() * 10)],
        )
        return [shown(first), shown(second.exec()), pb_utils.get_output_tensor_by_name(first, "NONE") is None]

    def tensor_again(self):
        first = ask().exec()
        kept = pb_utils.get_output_tensor_by_name(first, "OUTPUT0")
        return shown(pb_utils.InferenceRequest(
            model_name="copy", requested_output_names=["INPUT0"],
            inputs=[pb_utils.Tensor.from_dlpack("OUTPUT0", kept.to_dlpack())]).exec())

    def large(self):
        response = ask(np.arange(300000)).exec()
        array = response.output_tensors()[0].as_numpy()
        return [list(array.shape), int(array.astype(np.int64).sum())]

    def strings(self):
        return shown(text("echo", model="seen", request_id="the id", parameters={"a": 1, "b": "two", "c": True}).exec())

    def timeout_seen(self):
        return shown(text("echo", model="seen", timeout=5000000).exec())

    def correlation_int(self):
        start = pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START
        return shown(text("echo", model="seen", correlation_id=17, flags=start).exec())

    def correlation_text(self):
        request = text("echo", model="seen", correlation_id="abc")
        request.set_flags(pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_END)
        return shown(request.exec())

    def correlation_wrong(self):
        return caught(text, "echo", model="seen", correlation_id=1.5)

    def getters(self):
        request = ask(request_id="me", correlation_id=7, flags=1, timeout=3, parameters={"x": 1})
        return [request.request_id(), request.correlation_id(), request.flags(), request.timeout(), request.parameters(),
                sorted(request.requested_output_names()), [tensor.name() for tensor in request.inputs()]]

    def empty_model_name(self):
        return shown(ask(model="").exec())

    def empty_output_name(self):
        return caught(ask, outputs=("",))

    def no_outputs_named(self):
        return shown(ask(outputs=()).exec())

    def unknown_model(self):
        return shown(ask(model="nobody").exec())

    def unknown_version(self):
        return shown(ask(model_version=9).exec())

    def given_version(self):
        return shown(ask(model_version=1).exec())

    def not_loaded(self):
        return shown(ask(model="idle").exec())

    def unknown_input(self):
        return shown(ask(name="INPUT7").exec())

    def no_inputs(self):
        return shown(pb_utils.InferenceRequest(model_name="ident", inputs=[], requested_output_names=["OUTPUT0"]).exec())

    def unknown_output(self):
        return shown(ask(outputs=("OUTPUT7",)).exec())

    def wrong_type(self):
        return shown(ask(dtype=np.float32).exec())

    def wrong_shape(self):
        return shown(ask([[1, 2]]).exec())

    def model_error(self):
        return shown(ask([1], model="failing").exec())

    def model_error_code(self):
        return shown(ask([2], model="failing").exec())

    def error_parameters(self):
        return caught(ask, parameters={"x": [1]})

    def float_parameter(self):
        return caught(ask, parameters={"x": 1.5}) and "refused"

    def has_no_error(self):
        response = ask().exec()
        return [response.has_error(), response.error() is None]

    def decoupled_without(self):
        return shown(text("a b", model="words", outputs=("WORD",)).exec())

    def decoupled_three(self):
        return [shown(each) for each in text("a b c", model="words", outputs=("WORD",)).exec(decoupled=True)]

    def decoupled_none(self):
        return [shown(each) for each in text("", model="words", outputs=("WORD",)).exec(decoupled=True)]

    def decoupled_with_last(self):
        return [shown(each) for each in text("a b.", model="words", outputs=("WORD",)).exec(decoupled=True)]

    def decoupled_error(self):
        return [shown(each) for each in text("a ! b", model="words", outputs=("WORD",)).exec(decoupled=True)]

    def decoupled_unknown_model(self):
        return [shown(each) for each in text("a", model="nobody", outputs=("WORD",)).exec(decoupled=True)]

    def decoupled_of_plain(self):
        return [shown(each) for each in ask().exec(decoupled=True)]

    def decoupled_twice(self):
        responses = text("a b", model="words", outputs=("WORD",)).exec(decoupled=True)
        first = [shown(each) for each in responses]
        return [first, [shown(each) for each in responses], caught(next, responses)]

    def decoupled_next(self):
        responses = text("a b", model="words", outputs=("WORD",)).exec(decoupled=True)
        return [shown(next(responses)), shown(next(responses)), type(iter(responses)).__name__]

    def decoupled_cancel(self):
        responses = text("a wait b", model="words", outputs=("WORD",)).exec(decoupled=True)
        first = shown(next(responses))
        responses.cancel()
        return [first, [each.has_error() for each in responses][-1:]]

    def threads(self):
        said = [None] * 4
        def call(index):
            said[index] = shown(ask([index]).exec())
        threads = [threading.Thread(target=call, args=(index,)) for index in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return said

    def again(self):
        request = ask()
        return [shown(request.exec()), shown(request.exec())]

    def nested(self):
        return shown(text("one", model="middle", outputs=("SAID",)).exec())

    def ensemble(self):
        return shown(ask(model="chain").exec())

    def ensemble_error(self):
        return shown(ask([1], model="chain_failing").exec())

    def sequence(self):
        said = []
        for flags, value in ((1, 5), (0, 6), (2, 7)):
            said.append(shown(ask([value], model="sum", correlation_id=42, flags=flags).exec()))
        return said

    def sequence_text_id(self):
        said = []
        for flags, value in ((1, 5), (2, 6)):
            said.append(shown(ask([value], model="sum", correlation_id="s", flags=flags).exec()))
        return said

    def sequence_without_start(self):
        return shown(ask([1], model="sum", correlation_id=99).exec())

    def sequence_without_id(self):
        return shown(ask([1], model="sum").exec())

    def timeout_short(self):
        return shown(ask([400], model="slow", timeout=50000).exec())

    def preferred_cpu(self):
        return shown(ask(preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_CPU)).exec())

    def ready(self):
        return [pb_utils.is_model_ready("ident"), pb_utils.is_model_ready("ident", "1"), pb_utils.is_model_ready("ident", "9"),
                pb_utils.is_model_ready(model_name="idle", model_version=""), pb_utils.is_model_ready("nobody")]

    def load(self):
        said = [caught(pb_utils.load_model, "idle"), pb_utils.is_model_ready("idle"), shown(ask(model="idle").exec())]
        said += [caught(pb_utils.unload_model, "idle")]
        while pb_utils.is_model_ready("idle"):
            pass
        return said + [shown(ask(model="idle").exec())]

    def load_unknown(self):
        return caught(pb_utils.load_model, "nobody")

    def load_broken(self):
        return caught(pb_utils.load_model, "broken")

    def load_config(self):
        config = json.dumps({"backend": "python", "max_batch_size": 0,
                             "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [2]}],
                             "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [2]}]})
        said = [caught(pb_utils.load_model, "idle", config=config), shown(ask(model="idle").exec()),
                shown(ask([1, 2, 3], model="idle").exec())]
        pb_utils.unload_model("idle")
        while pb_utils.is_model_ready("idle"):
            pass
        return said

    def load_files(self):
        with open(__file__.replace("/caller/", "/ident/").replace("/acaller/", "/ident/"), "rb") as source:
            content = source.read()
        config = json.dumps({"backend": "python", "max_batch_size": 0,
                             "input": [{"name": "INPUT0", "data_type": "TYPE_INT32", "dims": [-1]}],
                             "output": [{"name": "OUTPUT0", "data_type": "TYPE_INT32", "dims": [-1]}]})
        said = [caught(pb_utils.load_model, model_name="made", config=config, files={"file:1/model.py": content}),
                shown(ask(model="made").exec())]
        pb_utils.unload_model(model_name="made", unload_dependents=True)
        while pb_utils.is_model_ready("made"):
            pass
        return said

    def load_files_without_config(self):
        return caught(pb_utils.load_model, "made", files={"file:1/model.py": b"x"})

    def load_files_wrong(self):
        return caught(pb_utils.load_model, "made", files=["x"])

    def load_config_wrong(self):
        return caught(pb_utils.load_model, "idle", config="{")

    def unload_unknown(self):
        return caught(pb_utils.unload_model, "nobody")

    def in_initialize(self):
        return IN_INITIALIZE
"""

SYNC = (
    CALLER
    + """

class TritonPythonModel(Cases):
    def initialize(self, args):
        IN_INITIALIZE["exec"] = caught(lambda: shown(ask().exec()))
        IN_INITIALIZE["ready"] = caught(pb_utils.is_model_ready, "nobody")

    def execute(self, requests):
        responses = []
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "DO").as_numpy()[0].decode()
            said = json.dumps(caught(getattr(self, case)), sort_keys=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([said.encode()], np.object_))]))
        return responses
"""
)

ASYNC = (
    CALLER
    + """

async def acaught(awaitable):
    try:
        return await awaitable
    except BaseException as error:
        return {"raised": type(error).__name__, "text": str(error).split("\\n\\nAt:")[0].strip()}


class AsyncCases(Cases):
    async def aone(self):
        return shown(await ask().async_exec())

    async def agather(self):
        return [shown(each) for each in await asyncio.gather(*[ask([number]).async_exec() for number in range(8)])]

    async def aerror(self):
        return shown(await ask(model="nobody").async_exec())

    async def adecoupled(self):
        responses = await text("a b", model="words", outputs=("WORD",)).async_exec(decoupled=True)
        return [shown(each) for each in responses]

    async def adecoupled_error(self):
        responses = await text("a ! b", model="words", outputs=("WORD",)).async_exec(decoupled=True)
        return [shown(each) for each in responses]

    async def adecoupled_without(self):
        return shown(await text("a b", model="words", outputs=("WORD",)).async_exec())

    async def amodel_error(self):
        return shown(await ask([2], model="failing").async_exec())


class TritonPythonModel(AsyncCases):
    async def execute(self, requests):
        responses = []
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "DO").as_numpy()[0].decode()
            said = caught(getattr(self, case))
            if asyncio.iscoroutine(said):
                said = await acaught(said)
            said = json.dumps(said, sort_keys=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([said.encode()], np.object_))]))
        return responses
"""
)

DECOUPLED = (
    CALLER
    + """

class TritonPythonModel(Cases):
    def execute(self, requests):
        for request in requests:
            case = pb_utils.get_input_tensor_by_name(request, "DO").as_numpy()[0].decode()
            where, _, case = case.rpartition("@")
            sender = request.get_response_sender()
            if where == "thread":
                threading.Thread(target=self.answer, args=(case, sender)).start()
            else:
                self.answer(case, sender)

    def answer(self, case, sender):
        said = json.dumps(caught(getattr(self, case)), sort_keys=True)
        sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([said.encode()], np.object_))]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)

IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())]) for request in requests
        ]
"""

COPY = IDENTITY.replace('"OUTPUT0"', '"INPUT0"')

FAILING = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            if request.inputs()[0].as_numpy()[0] == 1:
                raise ValueError("something broke")
            error = pb_utils.TritonError("model says no", pb_utils.TritonError.INVALID_ARG)
            responses.append(pb_utils.InferenceResponse(error=error))
        return responses
"""

SLOW = """
import time
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            time.sleep(request.inputs()[0].as_numpy()[0] / 1000)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())]))
        return responses
"""

SEEN = """
import json
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        responses = []
        for request in requests:
            seen = json.dumps({
                "parameters": json.loads(request.parameters()),
                "id": request.request_id(),
                "correlation": request.correlation_id(),
                "flags": request.flags(),
                "timeout": request.timeout() > 0,
                "outputs": sorted(request.requested_output_names()),
            }, sort_keys=True)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("SAID", np.array([seen.encode()], np.object_))]))
        return responses
"""

WORDS = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            text = request.inputs()[0].as_numpy()[0].decode()
            sender = request.get_response_sender()
            final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL
            words = text.rstrip(".").split()
            for number, word in enumerate(words):
                if word == "wait":
                    while not sender.is_cancelled():
                        time.sleep(0.01)
                    break
                if word == "!":
                    response = pb_utils.InferenceResponse(error=pb_utils.TritonError("no such word"))
                else:
                    response = pb_utils.InferenceResponse([pb_utils.Tensor("WORD", np.array([word.encode()], np.object_))])
                last = text.endswith(".") and number == len(words) - 1
                sender.send(response, final if last else 0)
            if not text.endswith("."):
                sender.send(flags=final)
        return None
"""

BROKEN = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights")
"""

SUM = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        self.sums = {}

    def execute(self, requests):
        responses = []
        for request in requests:
            start = pb_utils.get_input_tensor_by_name(request, "START").as_numpy().reshape(-1)[0]
            value = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
            known = 0 if start else self.sums.get(request.correlation_id(), 0)
            self.sums[request.correlation_id()] = known = known + int(value.reshape(-1)[0])
            out = np.full_like(value, known)
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)]))
        return responses
"""
