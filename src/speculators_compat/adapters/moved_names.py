"""vLLM moves functions that upstream imports by name; they are made importable from where upstream looks for them."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

from speculators_compat.adapter import Adapter, Finding, Preparation
from speculators_compat.import_hooks import GENERATOR_MODULE

OLD_PLACE = "vllm.v1.core.kv_cache_utils"
NEW_PLACE = "vllm.v1.core.kv_cache_planning"
NAMES = (
    "_get_kv_cache_groups_uniform_spec",
    "get_kv_cache_config_from_groups",
    "get_kv_cache_groups",
    "is_kv_cache_spec_uniform",
    "unify_hybrid_kv_cache_specs",
)


def put_names_where_they_were() -> None:
    """Give the old place what is at the new one. vLLM itself does not look there any more, so nothing else changes."""
    if not _have_moved():
        return
    old, new = import_module(OLD_PLACE), import_module(NEW_PLACE)
    for name in NAMES:
        if not hasattr(old, name) and hasattr(new, name):
            setattr(old, name, getattr(new, name))


def _have_moved() -> bool:
    try:
        return find_spec(NEW_PLACE) is not None
    except ModuleNotFoundError:  # a package on the way there
        return False


def probe() -> Finding:
    if not _have_moved():
        return Finding.intact("every name is where speculators looks for it")
    return Finding.broken(f"what speculators imports from {OLD_PLACE} is in {NEW_PLACE}")


ADAPTER = Adapter(
    name="moved_names",
    contract="vllm.v1.core.kv_cache_utils has the functions that size and group the KV cache.",
    symptom="ImportError: cannot import name '_get_kv_cache_groups_uniform_spec' from 'vllm.v1.core.kv_cache_utils'",
    vllm=">=0.33.0",
    speculators="<0.5.0",
    broken_by="vllm/v1/core/kv_cache_planning.py, 0.33.0: taken out of kv_cache_utils.py",
    removable_when="speculators 0.3 and 0.4 are no longer supported",
    probe=probe,
    preparations=(Preparation(GENERATOR_MODULE, put_names_where_they_were),),
)
