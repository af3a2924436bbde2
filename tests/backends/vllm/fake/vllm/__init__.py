"""A stand-in for vLLM without a model, with what the vllm backend uses: an answer is what the engine was asked, as JSON."""


class SamplingParams:
    def __init__(self, **arguments):
        self.arguments = arguments


class PoolingParams:
    def __init__(self, task, **arguments):
        assert task == "embed"
        self.arguments = arguments
