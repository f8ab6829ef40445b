"""A multimodal model that only ever sees text still profiles its vision encoder and loads the vision tower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor, parameters


def with_no_multimodal_input(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Set every modality that the model names to a limit of 0, which vLLM takes as text-only."""
    vllm_config = kwargs["vllm_config"]
    model_config = vllm_config.model_config
    if model_config.is_multimodal_model:
        from vllm.config.multimodal import MultiModalConfig

        nothing = MultiModalConfig(limit_per_prompt=dict.fromkeys(_modalities(model_config), 0))
        model_config.multimodal_config.limit_per_prompt = nothing.limit_per_prompt
    return wrapped(*args, **kwargs)


def _modalities(model_config: Any) -> list[str]:
    from vllm.multimodal import MULTIMODAL_REGISTRY

    info = MULTIMODAL_REGISTRY._create_processing_info(model_config, tokenizer=None)
    return list(info.get_supported_mm_limits())


def probe() -> Finding:
    from vllm.config.multimodal import MultiModalConfig
    from vllm.multimodal.registry import MultiModalRegistry

    parameters(MultiModalConfig, "vllm.config.multimodal.MultiModalConfig")
    parameters(MultiModalRegistry._create_processing_info, "vllm.multimodal.registry._create_processing_info")
    return Finding.broken("multimodal limits default to more than 0")


ADAPTER = Adapter(
    name="multimodal_text_only",
    contract="A prompt of token ids needs only the language model.",
    symptom="Start-up profiles a vision encoder with dummy images, or fails for want of an image processor "
    "(OSError: ... preprocessor_config.json), and the vision tower takes memory",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/multimodal/registry.py: supports_multimodal_inputs is true unless every limit is 0",
    removable_when="vLLM can be told once to run a multimodal model text-only, and speculators tells it",
    probe=probe,
    patches=(executor(with_no_multimodal_input),),
)
