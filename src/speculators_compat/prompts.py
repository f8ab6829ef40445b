"""Turns what users pass as prompts and layers into what vLLM takes, or says what is wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from speculators_compat.errors import LayerError, PromptError

logger = logging.getLogger("speculators_compat")


def normalize_prompts(token_ids: Any, vocabulary_size: int) -> list[list[int]]:
    """Check prompts, and make them lists of Python ints.

    Args:
        token_ids: A list of prompts (each a list, 1-D tensor or 1-D array of ids), or one 2-D tensor or array.
        vocabulary_size: Number of ids that the model's embedding has.

    Returns:
        One list of ids per prompt, in the order given, uncut.

    Raises:
        PromptError: If there is no prompt, or a prompt is empty or holds something that is not an id of the vocabulary;
            the message names the prompt and the position.
    """
    if token_ids is None:
        raise PromptError("token_ids is None; expected a list of prompts, each a list of token ids")
    if isinstance(token_ids, str | bytes | dict) or not _has_length(token_ids):
        raise PromptError(f"token_ids is {type(token_ids).__name__}; expected a list of prompts, or a 2-D tensor of ids")
    if len(token_ids) == 0:
        raise PromptError("token_ids cannot be empty: expected at least one prompt")
    return [_normalize(prompt, index, vocabulary_size) for index, prompt in enumerate(token_ids)]


def _has_length(value: Any) -> bool:
    return hasattr(value, "__len__") and getattr(value, "ndim", 1) > 0


def _normalize(prompt: Any, index: int, vocabulary_size: int) -> list[int]:
    if isinstance(prompt, str | bytes | dict) or not _has_length(prompt):
        raise PromptError(f"prompt {index} is {prompt!r}, not a list of token ids; a single prompt has to be given as [prompt]")
    ids = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
    if not ids:
        raise PromptError(f"prompt {index} is empty; expected at least one token id")
    for position, token in enumerate(ids):
        if type(token) is int and 0 <= token < vocabulary_size:
            continue
        ids[position] = _as_id(token, index, position, vocabulary_size)
    return ids


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
