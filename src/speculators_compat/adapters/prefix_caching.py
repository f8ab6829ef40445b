"""Prefix caching skips the computation of tokens whose KV cache exists: their hidden states are never there to capture."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor
from speculators_compat.errors import ContractError

logger = logging.getLogger("speculators_compat")


def without_prefix_caching(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    cache_config = kwargs["vllm_config"].cache_config
    if cache_config.enable_prefix_caching:
        logger.info("prefix caching is turned off: hidden states of cached tokens would never be computed")
        cache_config.enable_prefix_caching = False
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.config import CacheConfig

    default = getattr(CacheConfig, "enable_prefix_caching", None)
    if not hasattr(CacheConfig, "enable_prefix_caching"):
        raise ContractError("vllm.config.CacheConfig has no field enable_prefix_caching")
    return Finding.broken(f"CacheConfig.enable_prefix_caching is {default} by default and can be set by a subclass")


ADAPTER = Adapter(
    name="prefix_caching",
    contract="Every token of every prompt passes through every decoder layer.",
    symptom="Silently wrong: fewer rows than tokens for prompts that share a prefix, in a batch or with an earlier call",
    vllm=">=0.12.0",
    speculators="<0.5.0",
    broken_by="vllm/config/cache.py, 0.12.0: enable_prefix_caching became True by default",
    removable_when="speculators turns prefix caching off in every configuration (0.4 does in its own)",
    probe=probe,
    patches=(executor(without_prefix_caching),),
)
