"""`get_kv_cache_config_from_groups` took the specs of all layers until 0.11, beside the groups that hold them already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, accepts, generator_global, mentions

PARAMETER = "kv_cache_specs"


def with_specs_where_taken(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Pass the specs exactly where they are taken."""
    specs = kwargs.pop(PARAMETER, None)
    if _takes_specs():
        groups = kwargs["kv_cache_groups"]
        kwargs[PARAMETER] = specs or {name: group.kv_cache_spec for group in groups for name in group.layer_names}
    return wrapped(*args, **kwargs)


def _takes_specs() -> bool:
    from vllm.v1.core.kv_cache_utils import get_kv_cache_config_from_groups

    return accepts(get_kv_cache_config_from_groups, PARAMETER, "vllm.v1.core.kv_cache_utils.get_kv_cache_config_from_groups")


def probe() -> Finding:
    taken, passed = _takes_specs(), mentions("__init__", PARAMETER)
    if taken is passed:
        return Finding.intact(f"vLLM takes {PARAMETER}" if taken else f"speculators does not pass {PARAMETER}")
    return Finding.broken(f"{'vLLM takes' if taken else 'speculators passes'} {PARAMETER}, which the other does not know")


ADAPTER = Adapter(
    name="kv_cache_arguments",
    contract="get_kv_cache_config_from_groups accepts kv_cache_specs.",
    symptom="TypeError: get_kv_cache_config_from_groups() got an unexpected keyword argument 'kv_cache_specs'; with "
    "speculators 0.4 on vLLM 0.11: missing 1 required positional argument: 'kv_cache_specs'",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/v1/core/kv_cache_utils.py, 0.12.0: the parameter was dropped",
    removable_when="speculators 0.3 and vLLM 0.11 are no longer supported",
    probe=probe,
    patches=(generator_global("get_kv_cache_config_from_groups", with_specs_where_taken),),
)
