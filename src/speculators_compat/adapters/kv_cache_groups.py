"""Upstream puts the KV cache of all layers into one group; Mamba and linear attention beside attention need several."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, generator_global, parameters
from speculators_compat.extraction import current


def where_they_can_be(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Unify the specs of all layers in place, or leave them as they are if they are of kinds that cannot be unified."""

    from vllm.v1.kv_cache_interface import AttentionSpec

    def unify(kv_cache_spec: dict[str, Any]) -> None:
        if not all(isinstance(spec, AttentionSpec) for spec in kv_cache_spec.values()):
            return
        unified = dict(kv_cache_spec)
        try:
            wrapped(unified)
        except ValueError:
            return
        kv_cache_spec.update(unified)

    unify(*args, **kwargs)


def as_vllm_groups_them(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """One group if the specs are all alike; else vLLM's own grouping, which pads pages to one size."""
    from vllm.v1.core.kv_cache_utils import get_kv_cache_groups, is_kv_cache_spec_uniform

    def group(kv_cache_specs: dict[str, Any]) -> Any:
        extraction = current()
        if extraction is None or (kv_cache_specs and is_kv_cache_spec_uniform(kv_cache_specs)):
            return wrapped(kv_cache_specs)
        return get_kv_cache_groups(extraction.generator.vllm_config, kv_cache_specs)

    return group(*args, **kwargs)


def with_one_spec_a_group(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Give the scheduler what vLLM's engine gives it: of a group whose layers differ in size only, one layer's spec."""
    from vllm.v1.core.kv_cache_utils import generate_scheduler_kv_cache_config

    kwargs["kv_cache_config"] = generate_scheduler_kv_cache_config([kwargs["kv_cache_config"]])
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.v1.core import kv_cache_utils

    for name in ("get_kv_cache_groups", "is_kv_cache_spec_uniform", "generate_scheduler_kv_cache_config"):
        if not hasattr(kv_cache_utils, name):
            return Finding.intact(f"vLLM has no {name}: mixed models have no groups of their own")
    parameters(kv_cache_utils.get_kv_cache_groups, "vllm.v1.core.kv_cache_utils.get_kv_cache_groups")
    return Finding.broken("speculators makes one group of all layers")


ADAPTER = Adapter(
    name="kv_cache_groups",
    contract="The KV cache of all layers is of one kind, or can be made so.",
    symptom="ValueError: Hybrid KV cache manager is disabled but failed to convert the KV cache specs to one unified type; "
    "AssertionError: All attention layers in the same KV cache group must have the same attention spec",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/v1/core/kv_cache_utils.py: get_kv_cache_groups groups mixed models; upstream calls one of its branches",
    removable_when="speculators calls get_kv_cache_groups",
    probe=probe,
    patches=(
        generator_global("unify_hybrid_kv_cache_specs", where_they_can_be),
        generator_global("_get_kv_cache_groups_uniform_spec", as_vllm_groups_them),
        generator_global("Scheduler", with_one_spec_a_group),
    ),
)
