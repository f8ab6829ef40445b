"""Async scheduling is on by default where vLLM can; upstream drives the scheduler by hand, one finished step at a time.

With it on, a worker pickles its replies in another thread, on another CUDA stream, and can read states that are not yet
written. Turning it off does not complete a step; `two_phase_step` does that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor, require


def without_async_scheduling(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs["vllm_config"].scheduler_config.async_scheduling = False
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.config import SchedulerConfig

    require(SchedulerConfig, "vllm.config.SchedulerConfig", "async_scheduling")
    return Finding.broken("SchedulerConfig.async_scheduling decides for itself unless it is set")


ADAPTER = Adapter(
    name="async_scheduling",
    contract="When a worker has answered, what it answered with has been computed.",
    symptom="Silently wrong on a GPU: some states are read before they are written (22 of 1260 layer tensors, once)",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/config/vllm.py, 0.14.0: async_scheduling None resolves to True where supported",
    removable_when="speculators sets async_scheduling=False itself",
    probe=probe,
    patches=(executor(without_async_scheduling),),
)
