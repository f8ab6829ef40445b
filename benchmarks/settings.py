"""What is run: a model under limits, and prompts."""

from __future__ import annotations

import random
from dataclasses import dataclass

Prompts = list[list[int]]


@dataclass(frozen=True)
class Settings:
    """A model, and the limits under which every peer runs it.

    Attributes:
        model: Folder of the checkpoint; a `config.json` and a tokenizer are enough where weights are drawn at random.
        layers: Decoder layers whose states are wanted.
        max_model_len: Longest prompt, in tokens, and one more.
        max_num_batched_tokens: Tokens of a step at most.
        max_num_seqs: Requests of a step at most.
        gpu_memory_utilization: Share of the GPU's memory.
        tensor_parallel_size: Number of GPUs.
        block_size: Tokens of a KV cache block of plain vLLM; None leaves it to vLLM. speculators asks for 16.
        random_weights: Whether weights are drawn at random instead of loaded.
        turn_seconds: How long a peer calls in a row before the next one's turn; it is one call at least.
    """

    model: str
    layers: tuple[int, ...]
    max_model_len: int
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 32
    gpu_memory_utilization: float = 0.24
    tensor_parallel_size: int = 1
    block_size: int | None = None
    random_weights: bool = False
    turn_seconds: float = 0.5


@dataclass(frozen=True)
class Workload:
    """One call.

    Attributes:
        batch: Number of prompts.
        tokens: Length of each.
        layers: Decoder layers whose states are wanted.
    """

    batch: int
    tokens: int
    layers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.batch} x {self.tokens}, {len(self.layers)} layers"

    def prompts(self, vocabulary: int, seed: int) -> Prompts:
        """Prompts that have nothing in common, without the vocabulary's last ids, which are special."""
        drawn = random.Random(seed)
        return [[drawn.randrange(vocabulary - 300) for _ in range(self.tokens)] for _ in range(self.batch)]
