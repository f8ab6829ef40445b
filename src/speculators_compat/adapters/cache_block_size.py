"""Upstream asks for KV cache blocks of 16 tokens, and attention backends refuse sizes that they have no kernel for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor, generator_global

FIELD = "user_specified_block_size"


def of_the_backends_choice(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Ask for no size in place of upstream's: the workers choose one when they know their attention backends."""
    from speculators.data_generation import vllm_hidden_states_generator as generator

    if kwargs.get("block_size") == generator.VLLM_BLOCK_SIZE:
        del kwargs["block_size"]
    return wrapped(*args, **kwargs)


def kept_for_hybrids(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Keep the size that fits a hybrid's state pages, which vLLM 0.18 and 0.19 would set back to 16."""
    from vllm.platforms.interface import Platform

    vllm_config = kwargs["vllm_config"]
    if vllm_config.model_config.is_hybrid and not hasattr(Platform, "_align_hybrid_block_size"):
        vllm_config.cache_config.user_specified_block_size = True
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.config import CacheConfig

    if not hasattr(CacheConfig, FIELD):
        return Finding.intact("the platform sets the block size, whatever is asked for")
    return Finding.broken("a block size that is asked for is kept, or refused")


ADAPTER = Adapter(
    name="cache_block_size",
    contract="Blocks of 16 tokens suit every attention backend.",
    symptom="ValueError: No common block size for 16",
    vllm=">=0.18.0",
    speculators="<0.5.0",
    broken_by="vllm/config/cache.py, 0.18.0: user_specified_block_size; CPU attention takes multiples of 32 from 0.30.0 on",
    removable_when="speculators passes no block_size",
    probe=probe,
    patches=(generator_global("CacheConfig", of_the_backends_choice), executor(kept_for_hybrids)),
)
