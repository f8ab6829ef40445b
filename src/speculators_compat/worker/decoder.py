"""Finds the decoder layers of whatever model vLLM has loaded, by structure, with the model's own config as the check."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from speculators_compat.errors import ModelError

if TYPE_CHECKING:
    from torch import nn


def find_decoder_layers(model: nn.Module, model_config: Any) -> list[nn.Module]:
    """The layers that the residual stream of the language model passes through, in order.

    Args:
        model: The model as a worker holds it; a multimodal wrapper keeps its language model inside.
        model_config: vLLM's `ModelConfig`.

    Returns:
        As many modules as the text config has `num_hidden_layers`.

    Raises:
        ModelError: If no list of that length is found, or more than one at the same depth.
    """
    expected = model_config.hf_text_config.num_hidden_layers
    language_model = _language_model(model)
    lists = _module_lists(language_model)
    matching = [(path, layers) for path, layers in lists if len(layers) == expected]
    depth = min((path.count(".") for path, _ in matching), default=0)
    shallowest = [(path, layers) for path, layers in matching if path.count(".") == depth]
    if len(shallowest) != 1:
        seen = ", ".join(f"{path} ({len(layers)})" for path, layers in lists) or "none"
        raise ModelError(
            f"{type(model).__name__}: found {len(shallowest)} lists of {expected} decoder layers, expected one "
            f"(num_hidden_layers is {expected}; lists of modules: {seen}). Hidden states of this model cannot be captured."
        )
    return list(shallowest[0][1])


def _language_model(model: nn.Module) -> nn.Module:
    get_language_model = getattr(model, "get_language_model", None)
    return get_language_model() if callable(get_language_model) else model


def _module_lists(model: nn.Module) -> list[tuple[str, nn.ModuleList]]:
    from torch import nn

    return [(path, module) for path, module in model.named_modules() if isinstance(module, nn.ModuleList)]
