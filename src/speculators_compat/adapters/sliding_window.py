"""Where all layers slide, they learn their window from the cache config, and upstream builds one without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor, require


def with_the_models_window(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Set the window where all layers slide. Where they differ, each brings its own; where all are full, none counts."""
    model_config, cache_config = kwargs["vllm_config"].model_config, kwargs["vllm_config"].cache_config
    kinds = set(getattr(model_config.hf_text_config, "layer_types", None) or ())
    if cache_config.sliding_window is None and len(kinds) < 2 and kinds != {"full_attention"}:
        cache_config.sliding_window = model_config.get_sliding_window()
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    from vllm.config import CacheConfig, ModelConfig

    if not hasattr(CacheConfig, "sliding_window"):
        return Finding.intact("CacheConfig has no field sliding_window")
    require(ModelConfig, "vllm.config.ModelConfig", "get_sliding_window")
    return Finding.broken("speculators builds a CacheConfig without sliding_window")


ADAPTER = Adapter(
    name="sliding_window",
    contract="Attention slides where the model's config says so.",
    symptom="Silently wrong: states of tokens behind the window (4096 in Mistral 7B v0.1 and StarCoder2, 2047 in Phi-3 mini) "
    "are those of full attention",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/engine/arg_utils.py, create_engine_config: CacheConfig(sliding_window=...); upstream builds its own",
    removable_when="speculators builds its configuration through EngineArgs, or passes sliding_window",
    probe=probe,
    patches=(executor(with_the_models_window),),
)
