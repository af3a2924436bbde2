from typing import NamedTuple


class LoRARequest(NamedTuple):
    name: str
    number: int
    path: str
