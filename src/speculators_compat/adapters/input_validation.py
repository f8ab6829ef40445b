"""Upstream hands whatever it is given to the scheduler; bad input then fails late, or returns states of something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, generator_method
from speculators_compat.prompts import check_layer_ids, has_recurrent_layers, normalize_prompts, placeholder_tokens


def with_checked_layers(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Check `layer_ids` before a model is loaded for them."""
    layer_ids = kwargs.get("layer_ids", args[1] if len(args) > 1 else None)
    if layer_ids is not None:
        check_layer_ids(layer_ids)
    return wrapped(*args, **kwargs)


def with_checked_prompts(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Hand on lists of ints, or raise before anything is scheduled."""

    def generate(token_ids: Any) -> Any:
        model_config = instance.vllm_config.model_config
        if placeholders := placeholder_tokens(model_config.hf_config):
            # A config class may default to an id that is an ordinary token of this vocabulary.
            special = getattr(instance.tokenizer, "added_tokens_decoder", {})
            placeholders = {token: name for token, name in placeholders.items() if token in special}
        prompts = normalize_prompts(
            token_ids,
            model_config.get_vocab_size(),
            placeholders,
            recurrent=has_recurrent_layers(model_config),
        )
        return wrapped(prompts)

    return generate(*args, **kwargs)


def probe() -> Finding:
    return Finding.broken("speculators checks only for an empty list")


ADAPTER = Adapter(
    name="input_validation",
    contract="Only prompts of token ids that the model has, and layers that the model has, reach vLLM.",
    symptom="An assertion or IndexError in a worker, or states of a wrong token, for empty prompts, ids outside the "
    "vocabulary, floats or nested lists",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="speculators: generate() does not check; vLLM's own check is in the input processor, which is bypassed",
    removable_when="speculators checks its input",
    probe=probe,
    patches=(generator_method("__init__", with_checked_layers), generator_method("generate", with_checked_prompts)),
)
