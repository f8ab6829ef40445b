"""Small configs made out of large ones, what a large one needs, and what is said of an attempt; tests/tools runs attempts."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculators_compat.preflight.attempt import Attempt, Settings
from speculators_compat.preflight.checkpoint import weights
from speculators_compat.preflight.estimate import (
    Estimate,
    bytes_per_parameter,
    estimate,
    kv_cache_per_token,
    parameters,
    undivided,
)
from speculators_compat.preflight.shrinking import decoder_config, shrink
from speculators_compat.preflight.trial import Check

LLAMA_3_8B = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
}
MIXTRAL_8X7B = LLAMA_3_8B | {"vocab_size": 32000, "num_local_experts": 8, "num_experts_per_tok": 2}
QWEN3_30B_A3B = {
    "hidden_size": 2048,
    "intermediate_size": 6144,
    "num_hidden_layers": 48,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "vocab_size": 151936,
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
}
DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "num_hidden_layers": 61,
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "vocab_size": 129280,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "n_shared_experts": 1,
    "n_group": 8,
    "topk_group": 4,
    "first_k_dense_replace": 3,
}
KIMI_K2 = DEEPSEEK_V3 | {
    "num_attention_heads": 64,
    "num_key_value_heads": 64,
    "vocab_size": 163840,
    "n_routed_experts": 384,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
}


@pytest.mark.parametrize(
    ("decoder", "total", "active"),
    [
        (LLAMA_3_8B, 8.03e9, 8.03e9),
        (MIXTRAL_8X7B, 46.7e9, 12.9e9),
        (QWEN3_30B_A3B, 30.5e9, 3.3e9),
        (DEEPSEEK_V3, 671e9, 37e9),
        (KIMI_K2, 1.03e12, 32e9),
    ],
    ids=["Llama-3-8B", "Mixtral-8x7B", "Qwen3-30B-A3B", "DeepSeek-V3", "Kimi-K2"],
)
def test_parameters_are_as_many_as_are_published(decoder: dict[str, Any], total: float, active: float) -> None:
    size = parameters(decoder)
    assert size is not None
    assert size.total == pytest.approx(total, rel=0.03)
    assert size.active == pytest.approx(active, rel=0.05)


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({}, 2.0),
        ({"quant_method": "fp8"}, 1.0),
        ({"quant_method": "awq", "bits": 4}, 0.53),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}, 0.53),
        ({"config_groups": {"group_0": {"weights": {"num_bits": 8}}}}, 1.0),
        ({"quant_method": "mxfp4"}, 0.53),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, 0.53),
        ({"quant_method": "fbgemm_fp8"}, 1.0),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.53),
    ],
)
def test_bytes_of_a_parameter_follow_the_quantisation(quantization: dict[str, Any], expected: float) -> None:
    assert bytes_per_parameter({"text_config": KIMI_K2, "quantization_config": quantization}) == pytest.approx(expected)
    assert bytes_per_parameter({"text_config": KIMI_K2 | {"quantization_config": quantization}}) == pytest.approx(expected)


def test_a_latent_kv_cache_is_not_split_among_ranks_and_a_plain_one_is() -> None:
    assert kv_cache_per_token(KIMI_K2, 8) == kv_cache_per_token(KIMI_K2, 1) == 61 * (512 + 64) * 2
    assert kv_cache_per_token(LLAMA_3_8B, 1) == 32 * 2 * 8 * 128 * 2
    assert kv_cache_per_token(LLAMA_3_8B, 8) == kv_cache_per_token(LLAMA_3_8B, 16) == 32 * 2 * 128 * 2


def of_kimi(folder: Path, **changes: Any) -> Estimate:
    options = dict(layers=4, max_model_len=2048, tensor_parallel_size=8, gpu_memory_utilization=0.8, samples=1000)
    options |= dict(tokens_per_sample=1000, gpu_memory=141 * 2**30, gpu_name="NVIDIA H200")
    int4 = {"config_groups": {"group_0": {"weights": {"num_bits": 4}}}}
    return estimate(folder, {"text_config": KIMI_K2, "quantization_config": int4}, **options | changes)


def test_what_kimi_on_eight_gpus_needs(tmp_path: Path) -> None:
    needed = of_kimi(tmp_path)
    assert needed.weights == pytest.approx(545e9, rel=0.02)
    assert not needed.weights_known
    assert needed.states_per_token == 4 * 7168 * 2
    assert needed.disk == 10**6 * (4 * 7168 * 2 + 16)
    assert needed.capture == 8192 * 4 * 7168 * 2
    assert needed.kv_cache_tokens == pytest.approx((141 * 2**30 - 545e9 / 8) * 0.8 * 0.2 / 70272, rel=0.02)
    assert needed.load_seconds == pytest.approx(1200, rel=0.02)
    assert not needed.problems


def test_weights_are_the_sizes_of_the_files_where_there_are_any(tmp_path: Path) -> None:
    for name in ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        safetensors(tmp_path / name, 3 * 10**9)
    needed = of_kimi(tmp_path)
    assert needed.weights == pytest.approx(6 * 10**9)
    assert needed.weights_known


def safetensors(path: Path, size: int) -> None:
    header = json.dumps({"__metadata__": {}, "w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        file.truncate(8 + len(header) + size)


def test_weights_that_are_not_all_there_are_found(tmp_path: Path) -> None:
    for number in (1, 2):
        safetensors(tmp_path / f"{number}.safetensors", 1000)
    safetensors(tmp_path / "consolidated.safetensors", 2000)
    found = weights(tmp_path)
    assert 2000 < (found.size or 0) < 2400
    assert not found.problems
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "1.safetensors", "b": "3.safetensors"}})
    )
    assert weights(tmp_path).problems == ("3.safetensors: is missing",)
    (tmp_path / "3.safetensors").symlink_to("blob")
    assert weights(tmp_path).problems == ("3.safetensors: is a link to a file that is missing",)
    (tmp_path / "blob").write_text("version https://git-lfs.github.com/spec/v1")
    assert weights(tmp_path).problems == ("3.safetensors: has no header of a safetensors file",)
    safetensors(tmp_path / "blob", 1000)
    with (tmp_path / "blob").open("r+b") as file:
        file.truncate(500)
    assert "has 500 bytes, expected 1," in weights(tmp_path).problems[0]
    assert not weights(tmp_path / "nothing").problems


@pytest.mark.parametrize(
    ("config", "ranks", "words"),
    [
        (LLAMA_3_8B, 3, "32 attention heads cannot be split among 3 ranks"),
        (LLAMA_3_8B | {"num_attention_heads": 48}, 6, "8 key-value heads cannot be split among 6 ranks"),
        (LLAMA_3_8B, 8, ""),
        (LLAMA_3_8B, 16, ""),
        (LLAMA_3_8B | {"intermediate_size": 11008}, 8, ""),
        (
            LLAMA_3_8B | {"intermediate_size": 11008, "quantization_config": {"group_size": 128}},
            8,
            "11008 (intermediate_size), in",
        ),
        (KIMI_K2 | {"quantization_config": {"config_groups": {"a": {"weights": {"group_size": 32}}}}}, 8, ""),
    ],
)
def test_what_cannot_be_split_among_ranks_is_said(config: dict[str, Any], ranks: int, words: str) -> None:
    assert words in " ".join(undivided(config, ranks))
    assert bool(words) == bool(list(undivided(config, ranks)))


def test_sizes_that_are_no_numbers_are_unknown_and_no_crash(tmp_path: Path) -> None:
    odd = KIMI_K2 | {"intermediate_size": [1, 2], "qk_rope_head_dim": None, "first_k_dense_replace": None}
    assert parameters(odd) is not None
    assert parameters({}) is None
    assert kv_cache_per_token(odd | {"layer_types": ["linear_attention", "full_attention"]}, 1) == 512 * 2


def test_what_does_not_fit_is_said_with_what_to_do(tmp_path: Path) -> None:
    assert "Raise the tensor parallel size" in of_kimi(tmp_path, tensor_parallel_size=2).problems[0]
    assert "lower max_model_len" in of_kimi(tmp_path, max_model_len=500_000).problems[0]
    without = of_kimi(tmp_path, gpu_memory=0, gpu_name="")
    assert (without.kv_cache_tokens, without.run_seconds, without.problems) == (None, None, ())


@given(
    layers=st.integers(5, 128),
    per_rank=st.integers(1, 16),
    group=st.integers(1, 16),
    head=st.sampled_from([64, 80, 96, 128, 192, 256]),
    ranks=st.sampled_from([1, 2, 4, 8]),
    explicit=st.booleans(),
)
def test_a_small_config_keeps_what_kernels_look_at(
    layers: int, per_rank: int, group: int, head: int, ranks: int, explicit: bool
) -> None:
    heads = ranks * per_rank * group
    config = LLAMA_3_8B | {
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // group,
        "hidden_size": heads * head,
        **({"head_dim": head} if explicit else {}),
    }
    small = shrink(config, ranks)
    assert small["num_attention_heads"] % ranks == 0
    assert small["num_attention_heads"] % small["num_key_value_heads"] == 0
    assert small["num_attention_heads"] // small["num_key_value_heads"] == group
    assert explicit or small["hidden_size"] == small["num_attention_heads"] * head
    assert all(small[name] <= config[name] for name in config)
    assert shrink(small, ranks) == small


def test_a_small_config_has_a_layer_of_each_kind() -> None:
    kinds = ["sliding_attention"] * 5 + ["full_attention"]
    small = shrink(LLAMA_3_8B | {"num_hidden_layers": 36, "layer_types": kinds * 6, "rope_factors": [1.0] * 36})
    assert (small["num_hidden_layers"], small["layer_types"]) == (6, kinds)
    assert len(small["rope_factors"]) == 36
    small = shrink(LLAMA_3_8B | {"num_hidden_layers": 10, "hybrid_override_pattern": "MMM-*MMM-*", "model_type": "ten_letter"})
    assert (small["hybrid_override_pattern"], small["model_type"]) == ("MMM-*", "ten_letter")
    small = shrink(LLAMA_3_8B | {"linear_attn_config": {"full_attn_layers": [4, 8], "kda_layers": [1, 2, 3, 5, 6, 7]}})
    assert small["linear_attn_config"] == {"full_attn_layers": [4], "kda_layers": [1, 2, 3]}
    assert shrink(LLAMA_3_8B | {"full_attention_interval": 4})["num_hidden_layers"] == 5


def test_every_expert_of_a_small_config_is_active_and_one_layer_is_dense() -> None:
    small = shrink(DEEPSEEK_V3, 8)
    assert small["n_routed_experts"] == small["num_experts_per_tok"] == 8
    assert (small["n_group"], small["topk_group"], small["first_k_dense_replace"]) == (1, 1, 1)
    assert (small["kv_lora_rank"], small["qk_rope_head_dim"], small["moe_intermediate_size"]) == (512, 64, 2048)
    assert shrink(DEEPSEEK_V3, 1)["moe_intermediate_size"] == 256


def test_without_narrowing_layers_are_as_wide_as_they_were() -> None:
    small = shrink(DEEPSEEK_V3, 8, narrow=False)
    assert {name: small[name] for name in ("hidden_size", "num_attention_heads")} == {
        "hidden_size": 7168,
        "num_attention_heads": 128,
    }
    assert (small["num_hidden_layers"], small["n_routed_experts"]) == (4, 8)


def test_the_language_model_of_a_wrapper_is_what_is_made_small() -> None:
    config = {"model_type": "wrapper", "vision_config": {"num_hidden_layers": 27, "hidden_size": 1152}, "text_config": KIMI_K2}
    small = shrink(config)
    assert decoder_config(small)["num_hidden_layers"] == 4
    assert small["vision_config"] == {"num_hidden_layers": 2, "hidden_size": 1152}
    assert config["text_config"]["num_hidden_layers"] == 61


@pytest.mark.parametrize(("wanted", "gpus", "ranks"), [(8, 8, 8), (8, 3, 2), (8, 0, 1), (6, 4, 3), (5, 4, 1), (2, 8, 2)])
def test_as_many_ranks_are_tried_as_there_are_gpus_for_and_as_divide_them(wanted: int, gpus: int, ranks: int) -> None:
    assert Settings((0,), 2048, wanted, 0.8, gpus, 60).ranks == ranks


STARTED = Check("start", True, "")


def test_an_attempt_says_what_failed_and_what_cures_it() -> None:
    failed = Attempt(
        (STARTED, Check("complete", False, "RuntimeError: Boolean value of Tensor with more than one value is")), "", 0
    )
    assert failed.words().startswith("complete: RuntimeError: Boolean value")
    assert [adapter.name for adapter in failed.cures()] == ["tensor_safe_reply"]
    assert Attempt((), "", None).words() == "it took too long"
    assert Attempt((), "", -9).words() == "its process ended with -9"
    assert not Attempt((STARTED,), "", None).held
    assert Attempt((STARTED,), "", 0).held


def test_why_a_worker_did_not_start_is_read_from_the_log() -> None:
    generic = "Exception: WorkerProc initialization failed due to an exception in a background process."
    log = f"(Worker pid=1) ERROR 11-30 RuntimeError: Cannot re-initialize CUDA in forked subprocess\nTraceback\n{generic}\n"
    attempt = Attempt((Check("start", False, generic),), log, 0)
    assert attempt.words() == "start: RuntimeError: Cannot re-initialize CUDA in forked subprocess"
    assert [adapter.name for adapter in attempt.cures()] == ["fork_safety"]


@pytest.mark.parametrize(
    ("config", "arguments", "code", "words"),
    [
        (None, (), 1, "is no checkpoint that can be read"),
        ({}, (), 1, "does not say how many decoder layers there are"),
        (LLAMA_3_8B, ("--layer-ids", "2,32"), 2, "found [32], expected indices below 32"),
        (LLAMA_3_8B, ("--tensor-parallel-size", "0"), 2, "x>=1"),
        (LLAMA_3_8B, ("--layer-ids", "two"), 2, "expected indices such as 2,30,58,60"),
        (LLAMA_3_8B, ("--estimate-only",), 0, ""),
    ],
)
def test_bad_input_is_an_error_that_says_what_was_expected(
    tmp_path: Path, config: dict[str, Any] | None, arguments: tuple[str, ...], code: int, words: str
) -> None:
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    process = subprocess.run(
        [sys.executable, "-m", "speculators_compat", "preflight", str(tmp_path), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == code, process.stdout
    assert words in " ".join(process.stderr.split())
