"""Tiny checkpoints whose weights are quantised in the published formats, rounded and packed here, by no library or kernel.

Importing this adds them to `tiny_checkpoints.RECIPES` under the names of `QUANTIZED`. The text twin, which the reference loads,
gets the same weights as float32 numbers, so that what the reference multiplies is what the codes and scales mean.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tiny_checkpoints import RECIPES, Recipe, text_twin

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
LINEARS = r"\.(self_attn|mlp)\.\w+_proj\.weight$"
EXPERTS = r"\.mlp\.experts\.\d+\.\w+_proj\.weight$"
# As Kimi-K2.5 has it: attention, shared experts and the dense first layer stay in bfloat16.
EXPERTS_ONLY = ["lm_head", "re:.*self_attn.*", "re:.*shared_experts.*", r"re:.*mlp\.(gate|up|gate_up|down)_proj.*"]


@dataclass(frozen=True)
class Rounded:
    """A weight that is `(codes - zeros) * scales`.

    Attributes:
        codes: `[outputs, inputs]` in float32: 0 to 15, or numbers that float8_e4m3fn has.
        scales: `[outputs, groups]` in float32, each for `inputs / groups` neighbouring inputs.
        zeros: `[outputs, groups]` in float32.
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor

    def dequantized(self) -> torch.Tensor:
        """The weight `[outputs, inputs]` in float32."""
        groups = self.codes.unflatten(1, (self.scales.shape[1], -1))
        return ((groups - self.zeros[..., None]) * self.scales[..., None]).flatten(1)


@dataclass(frozen=True)
class Format:
    """A format of quantised weights.

    Attributes:
        round: Rounds a weight `[outputs, inputs]` in float32.
        layout: The tensors of a checkpoint, by the last part of their name.
        config: What the checkpoint's config has as `quantization_config`.
    """

    round: Callable[[torch.Tensor], Rounded]
    layout: Callable[[Rounded], dict[str, torch.Tensor]]
    config: dict[str, Any]


def quantize(
    directory: Path, form: Format, names: str = LINEARS, misread: Callable[[Rounded], Rounded] = lambda rounded: rounded
) -> None:
    """Turn the weights of a checkpoint into those of a format, and its text twin's into what they mean.

    Args:
        directory: A checkpoint as `tiny_checkpoints` saves it, in one file, with its twin beside it.
        form: The format.
        names: Matches the names of the weights that are quantised.
        misread: What the twin takes the weights for; other than they are, to see that tests notice.
    """
    packed, plain = {}, {}
    for name, weight in load_file(directory / "model.safetensors").items():
        if re.search(names, name):
            rounded = form.round(_uneven(weight.float()))
            plain[name] = misread(rounded).dequantized()
            packed |= {name.removesuffix("weight") + part: tensor for part, tensor in form.layout(rounded).items()}
        else:
            packed[name] = plain[name] = weight
    save_file(packed, directory / "model.safetensors", metadata={"format": "pt"})
    save_file(plain, text_twin(directory) / "model.safetensors", metadata={"format": "pt"})
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"quantization_config": form.config}, indent=2))


def pack(nibbles: torch.Tensor, order: Sequence[int] = range(8)) -> torch.Tensor:
    """Eight to an int32: `[rows, n]` becomes `[rows, n / 8]`, the i-th lowest four bits being value `order[i]` of the eight."""
    eights = nibbles.to(torch.int64).unflatten(1, (-1, 8))[..., list(order)]
    return (eights << 4 * torch.arange(8)).sum(-1).to(torch.int32)


def _uneven(weight: torch.Tensor) -> torch.Tensor:
    """Every 32 inputs times a factor of their own: otherwise all groups have about one scale, and a wrong one would hide."""
    factors = 0.25 + 1.5 * torch.rand(len(weight), weight.shape[1] // 32, generator=torch.Generator().manual_seed(0))
    return weight * factors.repeat_interleave(32, dim=1)


def _around_eight(weight: torch.Tensor, group: int) -> Rounded:
    """Zero is always code 8."""
    groups = weight.unflatten(1, (-1, group))
    scales = _storable(groups.abs().amax(-1) / 7)
    codes = (groups / scales[..., None]).round().clamp(-8, 7) + 8
    return Rounded(codes.flatten(1), scales, torch.full_like(scales, 8))


def _from_least_to_greatest(weight: torch.Tensor, group: int) -> Rounded:
    """Each group has a zero of its own."""
    groups = weight.unflatten(1, (-1, group))
    least, greatest = groups.amin(-1).clamp(max=0), groups.amax(-1).clamp(min=0)
    scales = _storable((greatest - least) / 15)
    zeros = (-least / scales).round().clamp(0, 15)
    codes = ((groups / scales[..., None]).round() + zeros[..., None]).clamp(0, 15)
    return Rounded(codes.flatten(1), scales, zeros)


def _storable(scales: torch.Tensor) -> torch.Tensor:
    """Rounded to numbers that both bfloat16 and float16 have: vLLM converts scales to the model's dtype."""
    return scales.bfloat16().float()


def _float8(weight: torch.Tensor, scales: torch.Tensor) -> Rounded:
    codes = (weight / scales).clamp(-448, 448).to(torch.float8_e4m3fn).float()
    return Rounded(codes, scales, torch.zeros_like(scales))


def _float8_by_channel(weight: torch.Tensor) -> Rounded:
    return _float8(weight, weight.abs().amax(1, keepdim=True) / 448)


def _float8_by_tensor(weight: torch.Tensor) -> Rounded:
    # A power of two: vLLM gives the parts of a fused layer one scale, and then has nothing to round again.
    scale = 2 ** (weight.abs().max() / 448).log2().ceil()
    return _float8(weight, scale.expand(len(weight), 1))


def _pack_quantized(rounded: Rounded) -> dict[str, torch.Tensor]:
    """As `pack_to_int32` of the library compressed-tensors has it: packed along the inputs."""
    return {
        "weight_packed": pack(rounded.codes),
        "weight_scale": rounded.scales.bfloat16(),
        "weight_shape": torch.tensor(rounded.codes.shape),
    }


def _gptq(rounded: Rounded) -> dict[str, torch.Tensor]:
    """AutoGPTQ's layout (`QuantLinear.pack`): packed along the inputs, transposed, and zeros stored less one."""
    inputs, groups = rounded.codes.shape[1], rounded.scales.shape[1]
    return {
        "qweight": pack(rounded.codes).T.contiguous(),
        "qzeros": pack(rounded.zeros.T - 1),
        "scales": rounded.scales.T.half().contiguous(),
        "g_idx": torch.arange(inputs, dtype=torch.int32) // (inputs // groups),
    }


def _awq(rounded: Rounded) -> dict[str, torch.Tensor]:
    """AutoAWQ's layout (`WQLinear_GEMM.from_linear`): transposed, packed along the outputs in an order of its own."""
    return {
        "qweight": pack(rounded.codes.T, AWQ_ORDER),
        "qzeros": pack(rounded.zeros.T, AWQ_ORDER),
        "scales": rounded.scales.T.half().contiguous(),
    }


def _float8_layout(rounded: Rounded) -> dict[str, torch.Tensor]:
    return {"weight": rounded.codes.to(torch.float8_e4m3fn), "weight_scale": rounded.scales}


def _float8_flat_scales(rounded: Rounded) -> dict[str, torch.Tensor]:
    return {"weight": rounded.codes.to(torch.float8_e4m3fn), "weight_scale": rounded.scales.flatten()}


def _float8_one_scale(rounded: Rounded) -> dict[str, torch.Tensor]:
    return {"weight": rounded.codes.to(torch.float8_e4m3fn), "weight_scale": rounded.scales[0, 0].clone()}


def _compressed_tensors(form: str, ignore: list[str], **scheme: Any) -> dict[str, Any]:
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ignore,
        "config_groups": {"group_0": {"targets": ["Linear"], "output_activations": None, **scheme}},
    }


def _int4(ignore: list[str]) -> Format:
    weights = dict(num_bits=4, type="int", symmetric=True, strategy="group", group_size=32, dynamic=False)
    config = _compressed_tensors("pack-quantized", ignore, weights=weights, input_activations=None)
    return Format(lambda weight: _around_eight(weight, 32), _pack_quantized, config)


FORMATS = {
    "int4": _int4(["lm_head"]),
    "int4_experts": _int4(EXPERTS_ONLY),
    "fp8": Format(
        _float8_by_channel,
        _float8_layout,
        _compressed_tensors(
            "float-quantized",
            ["lm_head"],
            weights=dict(num_bits=8, type="float", symmetric=True, strategy="channel", dynamic=False),
            input_activations=dict(num_bits=8, type="float", symmetric=True, strategy="token", dynamic=True),
        ),
    ),
    # The same numbers as above; the one FP8 that vLLM runs on a CPU, too.
    "fp8_modelopt": Format(
        _float8_by_channel,
        _float8_flat_scales,
        dict(quant_method="modelopt", quant_algo="FP8_PER_CHANNEL_PER_TOKEN", ignore=["lm_head"]),
    ),
    "fp8_per_tensor": Format(_float8_by_tensor, _float8_one_scale, dict(quant_method="fp8", activation_scheme="dynamic")),
    "gptq": Format(
        lambda weight: _around_eight(weight, 128),
        _gptq,
        dict(quant_method="gptq", bits=4, group_size=128, sym=True, desc_act=False, checkpoint_format="gptq"),
    ),
    "awq": Format(
        lambda weight: _from_least_to_greatest(weight, 128),
        _awq,
        dict(quant_method="awq", bits=4, group_size=128, zero_point=True, version="gemm"),
    ),
}


def tolerance(name: str) -> float:
    """The largest error that a token's state may have, in bfloat16, for a checkpoint or format of this name."""
    # Quantised weights are as good as their dequantised twin in bfloat16, for which Hugging Face has 0.016 at worst. vLLM
    # rounds activations to FP8, with four significant bits, too: 0.103 measured; such rounding in Hugging Face makes 0.091.
    return 0.15 if "fp8" in name else 0.03


def _experts(directory: Path) -> None:
    quantize(directory, FORMATS["int4_experts"], EXPERTS)


def _experts_of_kimi(directory: Path) -> None:
    _experts(directory)
    RECIPES["kimi_k25"].finish(directory)


QUANTIZED = {
    f"llama_{name}": Recipe(RECIPES["llama_128"].config, lambda directory, form=form: quantize(directory, form))
    for name, form in FORMATS.items()
    if name != "int4_experts"
} | {
    "deepseek_v3_int4": Recipe(RECIPES["deepseek_v3_mla"].config, _experts),
    "kimi_k25_int4": Recipe(RECIPES["deepseek_v3_mla"].config, _experts_of_kimi),
}
RECIPES.update(QUANTIZED)
