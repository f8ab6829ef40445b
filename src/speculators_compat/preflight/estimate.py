"""What the large model will need, from its config, the sizes of its files and the memory of the GPUs: nothing is loaded.

Arithmetic, not measurement: it says what a run costs to within a factor of two, and that it cannot fit where that is certain.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from speculators_compat.preflight.checkpoint import weights
from speculators_compat.preflight.shrinking import (
    EXPERTS,
    EXPERTS_PER_TOKEN,
    FEED_FORWARD,
    HEADS,
    KEY_VALUE_HEADS,
    LAYERS,
    VOCABULARY,
    WIDTH,
    decoder_config,
    number,
)

BYTES_PER_STATE = 2
# Upstream gives the KV cache a fifth of what is free on the first GPU once the weights are loaded (CACHE_MEMORY_FRACTION).
KV_CACHE_FRACTION = 0.2
TOKENS_PER_STEP = 8192
# By how much an estimate has to miss to be a reason for not trying.
CERTAINTY = 1.5
# Kimi-K2.5, 540 GB in 20 minutes. States leave the GPU while it computes, at 10 GB a second (32 layers in docs/performance.md).
LOADED_PER_SECOND = 0.45e9
CARRIED_PER_SECOND = 10e9
# Dense 16-bit FLOP/s from the vendors' data sheets, of which prefill reaches about this much.
PEAK_FLOPS = {"B200": 2.2e15, "H200": 989e12, "H100": 989e12, "H800": 989e12, "A100": 312e12, "L40S": 362e12, "L4": 121e12}
REACHED = 0.4


@dataclass(frozen=True)
class Size:
    """Parameters of a decoder.

    Attributes:
        total: All of them.
        active: Those that a token passes through.
    """

    total: int
    active: int


@dataclass(frozen=True)
class Estimate:
    """What a run will need; None where that cannot be said here.

    Attributes:
        weights: Bytes of all weights.
        weights_known: Whether the files say so, or only the config does.
        kv_cache_per_token: Bytes on each GPU.
        kv_cache_tokens: How many tokens the KV cache holds.
        capture: Bytes of a step's states on each GPU.
        states_per_token: Bytes that a token's states have.
        disk: Bytes of all samples.
        load_seconds: To load the weights.
        run_seconds: To extract all samples.
        problems: Why the run cannot work.
    """

    weights: int | None
    weights_known: bool
    kv_cache_per_token: int
    kv_cache_tokens: int | None
    capture: int
    states_per_token: int
    disk: int
    load_seconds: float | None
    run_seconds: float | None
    problems: tuple[str, ...]


def estimate(
    model: Path,
    config: Mapping[str, Any],
    *,
    layers: int,
    max_model_len: int,
    tensor_parallel_size: int,
    gpu_memory_utilization: float,
    samples: int,
    tokens_per_sample: int,
    gpu_memory: int,
    gpu_name: str,
) -> Estimate:
    """Estimate a run.

    Args:
        model: The checkpoint.
        config: Its config.
        layers: How many are captured.
        max_model_len: As given to the generator.
        tensor_parallel_size: Likewise.
        gpu_memory_utilization: Likewise.
        samples: How many prompts are extracted.
        tokens_per_sample: How long they are on average.
        gpu_memory: Bytes of one GPU; 0 without one.
        gpu_name: What it is called.
    """
    decoder = decoder_config(config)
    size, files = parameters(decoder), weights(model)
    total = files.size or (int(size.total * bytes_per_parameter(config)) if size else None)
    states = layers * (number(decoder, WIDTH) or 0) * BYTES_PER_STATE
    per_token, cached = kv_cache_per_token(decoder, tensor_parallel_size), None
    problems = [*files.problems, *undivided(config, tensor_parallel_size)]
    if gpu_memory and total:
        free = gpu_memory - total // tensor_parallel_size
        if total / tensor_parallel_size > gpu_memory * (1 if files.size else CERTAINTY):
            problems.append(
                f"The weights need {total / tensor_parallel_size / 1e9:.0f} GB on each of {tensor_parallel_size} GPUs, which "
                f"have {gpu_memory / 1e9:.0f} GB. Raise the tensor parallel size."
            )
        cached = int(max(free, 0) * gpu_memory_utilization * KV_CACHE_FRACTION) // max(per_token, 1)
        if 0 < cached < max_model_len / CERTAINTY:
            problems.append(
                f"The KV cache will hold about {cached} tokens, and one prompt may have {max_model_len}. Raise "
                "gpu_memory_utilization or the tensor parallel size, or lower max_model_len."
            )
    tokens = samples * tokens_per_sample
    flops = next((peak for name, peak in PEAK_FLOPS.items() if name in gpu_name), None)
    computed = 2 * size.active * tokens / (flops * REACHED * tensor_parallel_size) if flops and size else None
    return Estimate(
        weights=total,
        weights_known=files.size is not None,
        kv_cache_per_token=per_token,
        kv_cache_tokens=cached,
        capture=max(TOKENS_PER_STEP, max_model_len) * states,
        states_per_token=states,
        # Ids and the loss mask have eight bytes each.
        disk=tokens * (states + 16),
        load_seconds=total / LOADED_PER_SECOND if total else None,
        run_seconds=None if computed is None else max(computed, tokens * states / CARRIED_PER_SECOND),
        problems=tuple(problems),
    )


def undivided(config: Mapping[str, Any], ranks: int) -> Iterator[str]:
    """What of the model cannot be split among the ranks, which a small model does not show."""
    decoder = decoder_config(config)
    heads, key_value_heads = number(decoder, HEADS), number(decoder, KEY_VALUE_HEADS)
    if heads and heads % ranks:
        yield f"{heads} attention heads cannot be split among {ranks} ranks. Choose a tensor parallel size that divides them."
    elif key_value_heads and key_value_heads % ranks and ranks % key_value_heads:
        yield f"{key_value_heads} key-value heads cannot be split among {ranks} ranks. Choose another tensor parallel size."
    group = max(_group_size(quantization(config)), 1)
    for name in FEED_FORWARD:
        if (width := decoder.get(name)) and isinstance(width, int) and width % (ranks * group):
            whole = f", in groups of {group} with one scale," if group > 1 else ""
            yield f"A feed-forward layer of {width} ({name}){whole} cannot be split among {ranks} ranks."


def quantization(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The quantisation of a checkpoint, as its config has it."""
    return config.get("quantization_config") or decoder_config(config).get("quantization_config") or {}


def _weight_groups(quantization: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """How compressed-tensors rounds weights, by group of layers."""
    return [group.get("weights") or {} for group in (quantization.get("config_groups") or {}).values()]


def _group_size(quantization: Mapping[str, Any]) -> int:
    sizes = [quantization.get("group_size"), quantization.get("q_group_size")]
    sizes += [weights.get("group_size") for weights in _weight_groups(quantization)]
    return max((size for size in sizes if isinstance(size, int)), default=1)


def bytes_per_parameter(config: Mapping[str, Any]) -> float:
    """Of most parameters, by the checkpoint's quantisation; group scales come on top of four bits."""
    found = quantization(config)
    method = str(found.get("quant_method")) + str(found.get("quant_algo"))
    widths = [weights.get("num_bits") for weights in _weight_groups(found)] + [found.get("bits"), found.get("w_bit")]
    if "fp4" in method.lower() or found.get("load_in_4bit"):
        widths.append(4)
    if "fp8" in method.lower() or found.get("load_in_8bit"):
        widths.append(8)
    bits = next((bits for bits in widths if bits), 16)
    return float(bits) / 8 * (1.06 if bits < 8 else 1.0)


def kv_cache_per_token(decoder: Mapping[str, Any], ranks: int) -> int:
    """Bytes on each rank, if attention is over everything; multi-head latent attention is not split."""
    kinds = decoder.get("layer_types") or ["attention"] * (number(decoder, LAYERS) or 0)
    layers = sum("attention" in str(kind) and "linear" not in str(kind) for kind in kinds)
    if latent := number(decoder, ("kv_lora_rank",)):
        return layers * (latent + (number(decoder, ("qk_rope_head_dim",)) or 0)) * BYTES_PER_STATE
    heads = number(decoder, KEY_VALUE_HEADS) or number(decoder, HEADS) or 1
    return layers * 2 * max(heads // ranks, 1) * _head_dimension(decoder) * BYTES_PER_STATE


def parameters(decoder: Mapping[str, Any]) -> Size | None:
    """Counted from the config, for decoders of attention and gated feed-forward layers; None without the sizes."""
    width, layers, vocabulary = number(decoder, WIDTH), number(decoder, LAYERS), number(decoder, VOCABULARY)
    feed_forward = number(decoder, ("intermediate_size",)) or 4 * (width or 0)
    if not (width and layers and vocabulary):
        return None
    rest = (1 if decoder.get("tie_word_embeddings") else 2) * vocabulary * width + layers * _attention(decoder, width)
    experts = number(decoder, EXPERTS)
    if not experts:
        total = rest + layers * 3 * width * feed_forward
        return Size(total, total)
    dense = min(number(decoder, ("first_k_dense_replace",)) or 0, layers)
    expert = 3 * width * (number(decoder, ("moe_intermediate_size",)) or feed_forward)
    shared = (number(decoder, ("n_shared_experts",)) or 0) * expert
    shared += 3 * width * (number(decoder, ("shared_expert_intermediate_size",)) or 0)
    rest += dense * 3 * width * feed_forward + (layers - dense) * (shared + width * experts)
    active = number(decoder, EXPERTS_PER_TOKEN) or experts
    return Size(rest + (layers - dense) * experts * expert, rest + (layers - dense) * active * expert)


def _attention(decoder: Mapping[str, Any], width: int) -> int:
    heads = number(decoder, HEADS) or 1
    if latent := number(decoder, ("kv_lora_rank",)):
        names = ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim")
        rotary, plain, value = (number(decoder, (name,)) or 0 for name in names)
        query = heads * (plain + rotary)
        low_rank = number(decoder, ("q_lora_rank",))
        queries = width * low_rank + low_rank * query if low_rank else width * query
        return queries + width * (latent + rotary) + latent * heads * (plain + value) + heads * value * width
    head = _head_dimension(decoder)
    return 2 * width * heads * head + 2 * width * (number(decoder, KEY_VALUE_HEADS) or heads) * head


def _head_dimension(decoder: Mapping[str, Any]) -> int:
    return number(decoder, ("head_dim",)) or (number(decoder, WIDTH) or 0) // (number(decoder, HEADS) or 1)
