"""Models by their shape: checkpoints on which nothing depends but time, and a tiny one whose states can be checked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

# What is like Llama 3 in all of them.
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "max_position_embeddings": 32768,
    "rope_theta": 500000.0,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "dtype": "bfloat16",
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3-8b": LLAMA
    | {
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "small": LLAMA
    | {
        "vocab_size": 8192,
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
    },
}
TINY = "tiny"


def make(shape: str, directory: Path) -> Path:
    """Write a checkpoint: with weights if it is the tiny one, else a config, and the tiny one's tokenizer."""
    from transformers import AutoTokenizer, LlamaConfig

    from examples.tiny_checkpoints import make as make_tiny

    tiny = make_tiny("llama", directory / TINY)
    if shape == TINY:
        return tiny
    LlamaConfig(**SHAPES[shape]).save_pretrained(directory / shape)
    AutoTokenizer.from_pretrained(tiny).save_pretrained(directory / shape)
    return directory / shape
