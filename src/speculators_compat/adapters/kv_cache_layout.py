"""The layout of the KV cache has to be settled with the workers before its size is computed; upstream knows of no layout."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, accepts, executor, require
from speculators_compat.extraction import uninterrupted

INTERLEAVE = "cp_kv_cache_interleave_size"  # which set_kv_cache_layout asks for from 0.33 on


def with_layout_settled(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Settle the layout as vLLM's engine does: once, when the workers have loaded the model and know their backends."""
    started = wrapped(*args, **kwargs)
    try:
        uninterrupted(lambda: _settle(started, kwargs["vllm_config"]))
    except BaseException:
        started.shutdown()  # nobody else knows of it yet
        raise
    return started


def _settle(executor: Any, vllm_config: Any) -> None:
    from vllm.v1.attention.backends.utils import resolve_kv_cache_layout

    specs = [spec for worker in executor.get_kv_cache_specs() for spec in worker.values()]
    layout = resolve_kv_cache_layout(vllm_config, executor.get_supported_kv_cache_layouts(), specs)
    if accepts(executor.set_kv_cache_layout, INTERLEAVE, "MultiprocExecutor.set_kv_cache_layout"):
        executor.set_kv_cache_layout(layout.name, getattr(vllm_config.parallel_config, INTERLEAVE))
    else:
        executor.set_kv_cache_layout(layout.name)


def probe() -> Finding:
    from vllm.v1.attention.backends import utils
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    if not hasattr(utils, "resolve_kv_cache_layout"):
        return Finding.intact("vLLM settles the layout by itself")
    methods = ("get_kv_cache_specs", "get_supported_kv_cache_layouts", "set_kv_cache_layout")
    require(MultiprocExecutor, "vllm.v1.executor.multiproc_executor.MultiprocExecutor", *methods)
    return Finding.broken("vLLM's engine settles the layout, and speculators does not run vLLM's engine")


ADAPTER = Adapter(
    name="kv_cache_layout",
    contract="The size of the KV cache can be computed from the specs of its layers.",
    symptom="ValueError: KV cache layout has not been resolved yet; it is resolved once by the engine core",
    vllm=">=0.29.0",
    speculators="<0.5.0",
    broken_by="vllm/v1/engine/core.py, 0.29.0: resolve_kv_cache_layout() runs before the KV cache is sized",
    removable_when="speculators runs vLLM's engine",
    probe=probe,
    patches=(executor(with_layout_settled),),
)
