from dataclasses import dataclass


@dataclass
class EngineArgs:
    model: str
    max_num_seqs: int = 4
    enable_lora: bool = False
    runner: str = "auto"
    max_model_len: int = 20
