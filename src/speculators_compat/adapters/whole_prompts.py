"""A prompt cut into chunks hands its recurrent state from one to the next, and some linear-attention layers get it wrong.

Plain vLLM 0.16.0 on an H200 (docs/correctness.md): where prompts of Kimi-Linear are cut every 32 tokens, states behind the cut
are 0.45 to 0.81 off. Prompts fit into a step by upstream's own limits, so models with recurrent layers get theirs whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor, generator_global, require
from speculators_compat.errors import ConfigurationError
from speculators_compat.prompts import has_recurrent_layers


def without_chunks(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Switch chunked prefill off for models with recurrent layers, before one is loaded; where it is off, mean it."""
    vllm_config = kwargs["vllm_config"]
    if has_recurrent_layers(vllm_config.model_config):
        _schedule_whole_prompts(vllm_config, "has recurrent layers")
    elif not vllm_config.scheduler_config.enable_chunked_prefill:
        vllm_config.scheduler_config.long_prefill_token_threshold = 0
    return wrapped(*args, **kwargs)


def where_all_is_seen(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Switch it off, as vLLM's engine does, for layers in which tokens attend to later ones, as specs say from 0.24 on."""
    if any(getattr(group.kv_cache_spec, "non_causal", False) for group in kwargs["kv_cache_config"].kv_cache_groups):
        _schedule_whole_prompts(kwargs["vllm_config"], "has layers in which tokens attend to later ones")
    return wrapped(*args, **kwargs)


def _schedule_whole_prompts(vllm_config: Any, reason: str) -> None:
    """Never cut a prompt.

    Raises:
        ConfigurationError: If a step does not hold the longest prompt.
    """
    model_config, scheduler_config = vllm_config.model_config, vllm_config.scheduler_config
    if scheduler_config.max_num_batched_tokens < model_config.max_model_len:
        raise ConfigurationError(
            f"max_num_batched_tokens is {scheduler_config.max_num_batched_tokens}, less than max_model_len, "
            f"{model_config.max_model_len}; expected at least as many: {model_config.architecture} {reason}, "
            "and states may be wrong where a prompt is cut. Raise the one or lower the other."
        )
    scheduler_config.enable_chunked_prefill = False
    # The scheduler cuts prompts at it even so, and vLLM 0.11's CPU attention then forgets what is before the cut.
    scheduler_config.long_prefill_token_threshold = 0


def probe() -> Finding:
    from vllm.config import ModelConfig, SchedulerConfig

    require(ModelConfig, "vllm.config.ModelConfig", "is_hybrid", "is_attention_free")
    require(SchedulerConfig, "vllm.config.SchedulerConfig", "enable_chunked_prefill")
    return Finding.broken("vLLM cuts prompts that do not fit into what is left of a step")


ADAPTER = Adapter(
    name="whole_prompts",
    contract="How a prompt is scheduled does not change its states.",
    symptom="Silently wrong: states of prompts that a step cut in two, in Kimi-Linear",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/model_executor/layers/kda.py: the state that a chunk continues from; seen in 0.16.0",
    removable_when="states of cut prompts are those of whole ones in every recurrent layer of vLLM",
    probe=probe,
    patches=(executor(without_chunks), generator_global("Scheduler", where_all_is_seen)),
)
