"""Block hasher injection: a `Request` without a block hasher has no block hashes, which prefix caching relies on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from speculators_compat.adapter import Adapter, Finding, accepts, generator_global
from speculators_compat.extraction import current

PARAMETER = "block_hasher"


def with_block_hasher(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give the request the hasher that vLLM's engine would give it, if prefix caching is on and it has none."""
    extraction = current()
    if extraction is not None and kwargs.get(PARAMETER) is None:
        cache_config = extraction.generator.vllm_config.cache_config
        if cache_config.enable_prefix_caching:
            kwargs[PARAMETER] = make_block_hasher(cache_config.prefix_caching_hash_algo, cache_config.block_size)
    return wrapped(*args, **kwargs)


@cache
def make_block_hasher(algorithm: str, block_size: int) -> Callable[[Any], list[Any]]:
    """A hasher of full KV cache blocks.

    Args:
        algorithm: Name of the hash function, from vLLM's cache config.
        block_size: Tokens of a block, the same as the scheduler's.
    """
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    hash_function = get_hash_fn_by_name(algorithm)
    if not hasattr(kv_cache_utils, "NONE_HASH"):  # random by default: another would orphan every hash made so far
        kv_cache_utils.init_none_hash(hash_function)
    hasher: Callable[[Any], list[Any]] = kv_cache_utils.get_request_block_hasher(block_size, hash_function)
    return hasher


def probe() -> Finding:
    from speculators.data_generation import vllm_hidden_states_generator as generator
    from vllm.v1.request import Request

    if not accepts(Request, PARAMETER, "vllm.v1.request.Request"):
        return Finding.intact(f"Request takes no {PARAMETER}")
    if hasattr(generator, "get_request_block_hasher"):
        return Finding.intact("speculators passes a block hasher itself")
    return Finding.broken("speculators builds requests without a block hasher")


ADAPTER = Adapter(
    name="block_hasher",
    contract="The KV cache can hash the blocks of any request.",
    symptom="AssertionError (without text) in the block pool, on prompts of one KV cache block or more, "
    "wherever prefix caching is on",
    vllm=">=0.11.0",
    speculators="<0.4.0",
    broken_by="vllm/v1/core/block_pool.py, 0.11: cache_full_blocks asserts len(request.block_hashes)",
    removable_when="speculators 0.3 is no longer supported",
    probe=probe,
    patches=(generator_global("Request", with_block_hasher),),
)
