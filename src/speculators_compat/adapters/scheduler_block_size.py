"""The scheduler wants to be told the KV cache block size, and the platform, not upstream's literal 16, decides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, accepts, generator_global

PARAMETER = "block_size"


def with_platform_block_size(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pass the size that platform and workers settled on, for example 64 for MLA on Hopper, as vLLM's engine does."""
    from vllm.v1.core import kv_cache_utils

    vllm_config, kv_cache_config = kwargs["vllm_config"], kwargs["kv_cache_config"]
    if specs := [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]:
        in_blocks = [spec for spec in specs if getattr(spec, "prefix_cacheable", True)]  # and not in rings or scratch space
        vllm_config.cache_config.block_size = min(spec.block_size for spec in in_blocks or specs)
    if hasattr(kv_cache_utils, "resolve_kv_cache_block_sizes"):  # knows how groups of several sizes share blocks
        kwargs[PARAMETER], kwargs["hash_block_size"] = kv_cache_utils.resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
    else:
        kwargs[PARAMETER] = vllm_config.cache_config.block_size
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.v1.core.sched.scheduler import Scheduler

    if not accepts(Scheduler, PARAMETER, "vllm.v1.core.sched.scheduler.Scheduler"):
        return Finding.intact(f"Scheduler takes no {PARAMETER}")
    return Finding.broken(f"Scheduler takes {PARAMETER}; speculators passes none, or the constant 16")


ADAPTER = Adapter(
    name="scheduler_block_size",
    contract="The scheduler finds the KV cache block size by itself.",
    symptom="TypeError: Scheduler.__init__() missing 1 required positional argument: 'block_size'; "
    "AssertionError: UnitaryKVCacheCoordinator assumes hash_block_size == block_size",
    vllm=">=0.11.1",
    speculators="<0.5.0",
    broken_by="vllm/v1/core/sched/scheduler.py, 0.11.1: block_size became a parameter",
    removable_when="speculators passes vllm_config.cache_config.block_size",
    probe=probe,
    patches=(generator_global("Scheduler", with_platform_block_size),),
)
