"""Prefix caching skips the computation of tokens whose KV cache exists: their hidden states are never there to capture."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor, generator_global, require
from speculators_compat.errors import ConfigurationError
from speculators_compat.extraction import current

logger = logging.getLogger("speculators_compat")


def built_without(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Off from the start: how a Mamba layer keeps its state, and in what block size, is derived from it at once."""
    return wrapped(*args, **kwargs | {"enable_prefix_caching": False})


def switched_off(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Off where a subclass has turned it on."""
    cache_config = kwargs["vllm_config"].cache_config
    if cache_config.enable_prefix_caching:
        if (mode := getattr(cache_config, "mamba_cache_mode", "none")) != "none":
            raise ConfigurationError(
                f"prefix caching is on, and the model's state-space layers are set up for it (mamba_cache_mode is {mode!r}); "
                "expected it off, or hidden states of cached tokens are never computed. Build the VllmConfig with "
                "CacheConfig(enable_prefix_caching=False)."
            )
        logger.info("prefix caching is turned off: hidden states of cached tokens would never be computed")
        cache_config.enable_prefix_caching = False
    return wrapped(*args, **kwargs)


def without_hashes(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Let nobody hash the blocks of a request: it takes 10 s for a million tokens, and only prefix caching would read them."""
    extraction = current()
    if extraction is not None and not extraction.generator.vllm_config.cache_config.enable_prefix_caching:
        kwargs.pop("block_hasher", None)
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.config import CacheConfig

    default = getattr(CacheConfig, "enable_prefix_caching", None)
    require(CacheConfig, "vllm.config.CacheConfig", "enable_prefix_caching")
    return Finding.broken(f"CacheConfig.enable_prefix_caching is {default} by default and can be set by a subclass")


ADAPTER = Adapter(
    name="prefix_caching",
    contract="Every token of every prompt passes through every decoder layer.",
    symptom="Silently wrong: fewer rows than tokens for prompts that share a prefix, in a batch or with an earlier call",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/config/cache.py, 0.12.0: enable_prefix_caching became True by default",
    removable_when="speculators turns prefix caching off in every configuration (0.4 does in its own)",
    probe=probe,
    patches=(
        generator_global("CacheConfig", built_without),
        executor(switched_off),
        generator_global("Request", without_hashes),
    ),
)
