"""Turns what users pass as prompts and layers into what vLLM takes, or says what is wrong with it."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

from speculators_compat.errors import LayerError, PromptError

logger = logging.getLogger("speculators_compat")

PLACEHOLDER = re.compile(r"(image|video|audio|speech|media|vision)(_placeholder|_pad|_patch)?_token_(id|index)")


def placeholder_tokens(config: Any) -> dict[int, str]:
    """Token ids that stand for the embeddings of an image, a video or audio, and what the config calls them.

    Args:
        config: A Hugging Face config; those nested in it are looked at too.
    """
    found: dict[int, str] = {}
    for name, value in vars(config).items():
        if PLACEHOLDER.fullmatch(name) and type(value) is int:
            found[value] = name
        elif hasattr(value, "model_type"):
            found |= placeholder_tokens(value)
    return found


def has_recurrent_layers(model_config: Any) -> bool:
    """Whether a model has state-space, linear-attention or short-convolution layers, which carry a state from token to token.

    Args:
        model_config: vLLM's `ModelConfig`.
    """
    return bool(model_config.is_hybrid or model_config.is_attention_free)


def normalize_prompts(
    token_ids: Any, vocabulary_size: int, placeholders: Mapping[int, str] = MappingProxyType({}), recurrent: bool = False
) -> list[list[int]]:
    """Check prompts, and make them lists of Python ints.

    Args:
        token_ids: A list of prompts (each a list, 1-D tensor or 1-D array of ids), or one 2-D tensor or array.
        vocabulary_size: Number of ids that the model's embedding has.
        placeholders: Ids that have no embedding of their own, and what they are called.
        recurrent: Whether the model has recurrent layers: vLLM takes a prompt of one token for a decoding step
            (vllm/v1/attention/backends/utils.py, split_decodes_and_prefills), which continues from whatever state it finds.

    Returns:
        One list of ids per prompt, in the order given, uncut.

    Raises:
        PromptError: If there is no prompt, or a prompt is empty or holds something that is not an id of the vocabulary, or a
            placeholder, or is too short for the model; the message names the prompt and the position.
    """
    if token_ids is None:
        raise PromptError("token_ids is None; expected a list of prompts, each a list of token ids")
    if isinstance(token_ids, str | bytes | dict) or not _has_length(token_ids):
        raise PromptError(f"token_ids is {type(token_ids).__name__}; expected a list of prompts, or a 2-D tensor of ids")
    if len(token_ids) == 0:
        raise PromptError("token_ids cannot be empty: expected at least one prompt")
    prompts = [_normalize(prompt, index, vocabulary_size) for index, prompt in enumerate(token_ids)]
    for index, prompt in enumerate(prompts):
        if recurrent and len(prompt) == 1:
            raise PromptError(
                f"prompt {index} has 1 token, expected at least 2: the model has recurrent layers, and vLLM would run it as a "
                "decoding step, from the state that another prompt has left. Leave such samples out."
            )
        for token in placeholders.keys() & set(prompt) if placeholders else ():
            raise PromptError(
                f"prompt {index}, position {prompt.index(token)}: token id {token} is a placeholder ({placeholders[token]}), "
                "whose embedding an encoder would make; hidden states are extracted from text only. Leave such samples out."
            )
    return prompts


def _has_length(value: Any) -> bool:
    return hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0


def _normalize(prompt: Any, index: int, vocabulary_size: int) -> list[int]:
    if isinstance(prompt, str | bytes | dict) or not _has_length(prompt):
        raise PromptError(f"prompt {index} is {prompt!r}, not a list of token ids; a single prompt has to be given as [prompt]")
    ids = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
    if not ids:
        raise PromptError(f"prompt {index} is empty; expected at least one token id")
    if set(map(type, ids)) == {int} and min(ids) >= 0 and max(ids) < vocabulary_size:  # nearly always, and 20 times as fast
        return ids
    return [_as_id(token, index, position, vocabulary_size) for position, token in enumerate(ids)]


def _as_id(token: Any, index: int, position: int, vocabulary_size: int) -> int:
    where = f"prompt {index}, position {position}"
    if isinstance(token, bool) or not hasattr(token, "__index__"):
        nested = " (prompts are nested too deep)" if _has_length(token) else ""
        raise PromptError(f"{where}: found {token!r} of type {type(token).__name__}, expected a token id{nested}")
    try:
        value = token.__index__()
    except TypeError as error:
        raise PromptError(f"{where}: found {token!r}, expected a token id") from error
    if not 0 <= value < vocabulary_size:
        raise PromptError(f"{where}: token id {value} is outside the vocabulary, 0 to {vocabulary_size - 1}")
    return int(value)


def check_layer_ids(layer_ids: Iterable[Any]) -> None:
    """Check that `layer_ids` are indices; upstream checks that the model has them.

    Raises:
        LayerError: If there are none, or one is not an int.
    """
    if isinstance(layer_ids, str | bytes) or not _has_length(layer_ids):
        raise LayerError(f"layer_ids is {layer_ids!r}; expected a list of decoder layer indices, or None")
    layers = list(layer_ids)
    if not layers:
        raise LayerError("layer_ids is empty; expected at least one decoder layer index, or None for upstream's choice")
    for layer in layers:
        if isinstance(layer, bool) or not hasattr(layer, "__index__"):
            raise LayerError(f"layer_ids holds {layer!r} of type {type(layer).__name__}; expected ints")
    if (ascending := sorted({int(layer) for layer in layers})) != [int(layer) for layer in layers]:
        logger.warning("layer_ids is %s; states come in ascending order, once per layer: %s", layers, ascending)
