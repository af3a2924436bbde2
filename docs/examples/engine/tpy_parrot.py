"""An engine that repeats the words of its prompt, one in each step."""

from collections import deque

from tpy.backend import BackendCapabilities
from tpy.backend.engine import Delta, EngineLimits, EngineLoad, Logprob
from tpy.errors import InvalidArgument

BLOCK_TOKENS = 16


class Parrot:
    def __init__(self, sequences=8, blocks=1024):
        self.room = EngineLimits(sequences=sequences, tokens=blocks * BLOCK_TOKENS)
        self.blocks = blocks
        self.running = {}  # (request, index) -> words that are left to say, words said
        self.waiting = deque()

    def limits(self):
        return self.room

    def add(self, request):
        words = request.prompt.split()
        if not words:
            raise InvalidArgument("the prompt is empty")
        if len(words) >= self.room.tokens:
            raise InvalidArgument(f"the prompt has {len(words)} tokens, at most {self.room.tokens - 1} are taken")
        self.waiting.extend([(request, index, words) for index in range(request.n)])

    def cancel(self, request_id):
        self.waiting = deque([each for each in self.waiting if each[0].id != request_id])
        self.running = {key: each for key, each in self.running.items() if key[0] != request_id}

    def step(self):
        while self.waiting and len(self.running) < self.room.sequences:
            request, index, words = self.waiting.popleft()
            self.running[request.id, index] = [request, words, 0]
        deltas = []
        for (number, index), each in list(self.running.items()):
            request, words, said = each
            each[2] = said = said + 1
            word = words[(said - 1) % len(words)]
            ended = said == request.max_tokens
            if ended:
                del self.running[number, index]
            deltas.append(
                Delta(
                    number,
                    text=f"{word} ",
                    tokens=1,
                    prompt_tokens=len(words),
                    sequence=index,
                    finish_reason="length" if ended else None,
                    logprobs=[{said: Logprob(-1.0, 1, word)}] if request.logprobs else None,
                )
            )
        return deltas

    def load(self):
        used = sum(-(-(len(words) + said) // BLOCK_TOKENS) for _, words, said in self.running.values())
        return EngineLoad(
            running=len(self.running),
            waiting=len(self.waiting),
            kv_blocks_used=min(used, self.blocks),
            kv_blocks_total=self.blocks,
        )

    def close(self):
        self.running.clear()
        self.waiting.clear()


class ParrotModel:
    def create_engine(self, placement):
        return Parrot()

    def unload(self):
        pass


class ParrotBackend:
    def __init__(self, settings):
        self.capabilities = BackendCapabilities(name=settings.name, default_model_filename="", decoupled=True, engine=True)

    def auto_complete(self, context):
        return context.config

    def load(self, context):
        return ParrotModel()

    def close(self):
        pass


create = ParrotBackend
