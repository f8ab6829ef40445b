"""The scheduler wants to be told the KV cache block size, and the platform, not upstream's literal 16, decides it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, accepts, generator_global

PARAMETER = "block_size"


def with_platform_block_size(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pass the size that the platform settled on, for example 64 for MLA on Hopper, as vLLM's engine does."""
    kwargs[PARAMETER] = kwargs["vllm_config"].cache_config.block_size
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
