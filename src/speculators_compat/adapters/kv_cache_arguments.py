"""`get_kv_cache_config_from_groups` no longer takes the specs that the groups already hold."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, accepts, generator_global, mentions

PARAMETER = "kv_cache_specs"


def without_specs(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    kwargs.pop(PARAMETER, None)
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups

    if accepts(get_kv_cache_config_from_groups, PARAMETER, "vllm.v1.core.kv_cache_utils.get_kv_cache_config_from_groups"):
        return Finding.intact(f"vLLM accepts {PARAMETER}")
    if not mentions("__init__", PARAMETER):
        return Finding.intact(f"speculators does not pass {PARAMETER}")
    return Finding.broken(f"speculators passes {PARAMETER}, which vLLM does not accept")


ADAPTER = Adapter(
    name="kv_cache_arguments",
    contract="get_kv_cache_config_from_groups accepts kv_cache_specs.",
    symptom="TypeError: get_kv_cache_config_from_groups() got an unexpected keyword argument 'kv_cache_specs'",
    vllm=">=0.12.0",
    speculators="<0.4.0",
    broken_by="vllm/v1/core/kv_cache_utils.py, 0.12.0: the parameter was dropped",
    removable_when="speculators 0.3 is no longer supported",
    probe=probe,
    patches=(generator_global("get_kv_cache_config_from_groups", without_specs),),
)
