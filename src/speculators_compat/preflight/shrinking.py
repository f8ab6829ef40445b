"""Makes a small config out of a checkpoint's: the same architecture and quantisation, few layers, few heads, few experts.

What kernels are particular about stays as it is: head dimensions, the ranks of multi-head latent attention, group sizes. Each
rank gets a feed-forward layer of a width that every group size divides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from math import gcd
from typing import Any

Config = dict[str, Any]

# What configs call these, in all the dialects.
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers")
WIDTH = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
KEY_VALUE_HEADS = ("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
HEAD_DIMENSION = ("head_dim", "qk_nope_head_dim", "kv_channels", "attention_head_dim")
FEED_FORWARD = (
    *("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner", "intermediate_size_mlp"),
    *("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size"),
)
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
EXPERTS_PER_TOKEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_top_k", "num_experts_per_topk", "moe_k")
EXPERT_GROUPS = ("n_group", "topk_group", "num_expert_group")
VOCABULARY = ("vocab_size", "padded_vocab_size")
WINDOW = ("sliding_window",)
FIRST_OF_A_KIND = ("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
PERIODS = (
    *("full_attention_interval", "sliding_window_pattern", "attn_layer_period", "expert_layer_period", "moe_layer_freq"),
    *("decoder_sparse_step", "interleave_moe_layer_step", "no_rope_layer_interval", "global_attn_every_n_layers"),
)

FEWEST_LAYERS, MOST_LAYERS = 4, 12
HEADS_PER_RANK = 4
WIDTH_PER_RANK = 256
LEAST_WIDTH = 512
VOCABULARY_SIZE = 4096
WINDOW_SIZE = 64


def decoder_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a config that describes the language model: the config itself, or one nested in it."""
    for nested in [config, *_nested(config)]:
        if any(name in nested for name in LAYERS) and any(name in nested for name in VOCABULARY):
            return nested
    return config


def number(config: Mapping[str, Any], names: tuple[str, ...]) -> int | None:
    """The entry of a config that goes by one of `names`."""
    return next((config[name] for name in names if isinstance(config.get(name), int)), None)


def shrink(config: Mapping[str, Any], tensor_parallel_size: int = 1, *, narrow: bool = True) -> Config:
    """A config of a model that loads in seconds, and runs the code that the large one runs.

    Args:
        config: The checkpoint's `config.json`.
        tensor_parallel_size: By how many ranks heads and widths must be divisible.
        narrow: Whether to make layers small, too; otherwise there are only fewer of them, and of experts and tokens.

    Returns:
        A new config. Layers are as many, at least four, as have one of each kind that the large model has.
    """
    decoder = decoder_config(config)

    def remade(part: Any) -> Any:
        if not isinstance(part, Mapping):
            return part
        entries = {name: remade(entry) for name, entry in part.items()}
        if part is decoder:
            return _shrunken(entries, tensor_parallel_size, narrow)
        # Towers for other modalities are not built for text; if they are all the same, they are short.
        return entries | {name: min(entries[name], 2) for name in (*LAYERS, "depth") if isinstance(entries.get(name), int)}

    return remade(config)  # type: ignore[no-any-return]


def _shrunken(decoder: Config, ranks: int, narrow: bool) -> Config:
    layers = number(decoder, LAYERS) or 0
    kept = _layers_to_keep(decoder, layers)
    small = {name: _cut(name, entry, layers, kept) for name, entry in decoder.items()}
    small |= _sizes(decoder, LAYERS, kept)
    small |= {name: min(decoder[name], 1) for name in FIRST_OF_A_KIND if isinstance(decoder.get(name), int)}
    small |= _sizes(decoder, VOCABULARY, VOCABULARY_SIZE)
    small |= _sizes(decoder, WINDOW, WINDOW_SIZE)
    # All experts are active: with random weights, rounding alone would send tokens to others.
    active = number(decoder, EXPERTS_PER_TOKEN) or 1
    small |= _sizes(decoder, EXPERTS, active) | _sizes(decoder, EXPERT_GROUPS, 1)
    return small | _widths(decoder, ranks) if narrow else small


def _widths(decoder: Config, ranks: int) -> Config:
    heads, width = number(decoder, HEADS), number(decoder, WIDTH)
    if not heads or not width:
        return {}
    key_value_heads = number(decoder, KEY_VALUE_HEADS) or heads
    group = heads // key_value_heads or 1
    fewer_key_value_heads = min(key_value_heads, ranks * (HEADS_PER_RANK if group == 1 else 1))
    multiple = ranks // gcd(ranks, fewer_key_value_heads * group)
    fewer_heads = min(heads, fewer_key_value_heads * group * multiple)
    head_dimension = number(decoder, HEAD_DIMENSION)
    smaller_width = min(width, LEAST_WIDTH) if head_dimension else width // heads * fewer_heads
    return {
        **_sizes(decoder, HEADS, fewer_heads),
        **_sizes(decoder, KEY_VALUE_HEADS, fewer_key_value_heads),
        **_sizes(decoder, WIDTH, smaller_width),
        **_sizes(decoder, FEED_FORWARD, WIDTH_PER_RANK * ranks),
    }


def _sizes(decoder: Config, names: tuple[str, ...], size: int) -> Config:
    """`size` for each of `names` that the config has, unless it is smaller anyway."""
    return {name: min(decoder[name], size) for name in names if isinstance(decoder.get(name), int)}


def _layers_to_keep(decoder: Config, layers: int) -> int:
    """How many layers have one of each kind among them."""
    needed = [FEWEST_LAYERS]
    needed += [decoder[name] + 1 for name in PERIODS if isinstance(decoder.get(name), int)]
    for name, entry in decoder.items():
        if _is_by_layer(name, entry, layers):
            kinds = [json.dumps(kind) for kind in entry]
            needed.append(max(kinds.index(kind) for kind in set(kinds)) + 1)
    return min(layers, MOST_LAYERS, max(needed))


def _cut(name: str, entry: Any, layers: int, kept: int) -> Any:
    """An entry with what it says about layers that are not kept left out."""
    if isinstance(entry, Mapping):
        return {nested: _cut(nested, value, layers, kept) for nested, value in entry.items()}
    if _is_by_layer(name, entry, layers):
        return entry[:kept]
    if isinstance(entry, list) and "layers" in name and all(isinstance(index, int) for index in entry):
        return [index for index in entry if index <= kept]
    return entry


def _is_by_layer(name: str, entry: Any, layers: int) -> bool:
    """Whether an entry says something of each layer; other lists may be as long by chance."""
    if isinstance(entry, str):
        return "pattern" in name and len(entry) == layers
    return isinstance(entry, list) and len(entry) == layers and not any(word in name for word in ("factor", "section", "token"))


def _nested(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    inner = [entry for entry in config.values() if isinstance(entry, Mapping)]
    yield from inner
    for entry in inner:
        yield from _nested(entry)
