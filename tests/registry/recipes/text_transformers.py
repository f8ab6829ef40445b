"""Text architectures that transformers has, under vLLM's name or another, where the general rule does not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers.models.dbrx.configuration_dbrx import DbrxAttentionConfig, DbrxFFNConfig

from tests.registry.recipes.recipe import LATENT_ATTENTION, Recipe
from tests.registry.tiny import LAYERS

FULL, SLIDING = "full_attention", "sliding_attention"
# Windows that the prompts are longer than.
WINDOW = 32
TIED = {"tie_word_embeddings": True}
# One key-value head per query head: vLLM knows nothing else here.
MULTI_HEAD = {"num_key_value_heads": 4}
FALCON = TIED | {"ffn_hidden_size": 512}
BLOOM = TIED | {"model_type": "bloom", "n_layer": LAYERS, "n_head": 4, "layer_norm_epsilon": 1e-5}
BLOOM |= {"apply_residual_connection_post_layernorm": False}
# Factors that leave a trace in the states; real models have others.
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "attention_multiplier": 0.2, "logits_scaling": 2.0}
MLA = MULTI_HEAD | LATENT_ATTENTION | {"q_lora_rank": 64}
# One expert, which is thereby always active: vLLM weights an expert's input, which it can only do for a single one.
LLAMA4 = {"num_local_experts": 1, "num_experts_per_tok": 1, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 256}
LLAMA4 |= {"attention_chunk_size": 64, "floor_scale": 16}
GEMMA3N: dict[str, Any] = {"sliding_window": WINDOW, "layer_types": [SLIDING, FULL] * 2, "num_kv_shared_layers": 2, **TIED}
GEMMA3N |= {"vocab_size_per_layer_input": 512, "hidden_size_per_layer_input": 32, "laurel_rank": 16}
GEMMA3N |= {"activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0]}
# In published configs of sigmoid routers; transformers leaves them out.
SIGMOID_ROUTER = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "moe_layer_freq": 1}
MAMBA2_MIXER = {"mamba_n_heads": 4, "mamba_d_head": 64, "mamba_d_state": 128, "mamba_n_groups": 1}
QK_NORM = {"use_qk_norm": True}


def _as_fairseq2(directory: Path) -> None:
    """Put the weights of a Llama beside themselves as fairseq2 names, nests and interleaves them; vLLM reads only these."""
    names = {
        "model.embed_tokens.": "decoder_frontend.embed.",
        "model.": "decoder.",
        "lm_head.": "final_proj.",
        ".input_layernorm.": ".self_attn_layer_norm.",
        ".post_attention_layernorm.": ".ffn_layer_norm.",
        ".self_attn.o_proj.": ".self_attn.output_proj.",
        ".mlp.gate_proj.": ".ffn.gate_proj.",
        ".mlp.up_proj.": ".ffn.inner_proj.",
        ".mlp.down_proj.": ".ffn.output_proj.",
        ".norm.": ".layer_norm.",
    }
    head_dim = json.loads((directory / "config.json").read_text())["head_dim"]
    weights: dict[str, Tensor] = {}
    for name, weight in load_file(directory / "model.safetensors").items():
        if "q_proj" in name or "k_proj" in name:
            weight = weight.unflatten(0, (-1, 2, head_dim // 2)).transpose(1, 2).flatten(0, 2)
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        weights[name] = weight.contiguous()
    torch.save({"model_key": "model", "model": weights}, directory / "model.pt")


def _without_wrapper(directory: Path) -> None:
    """Name the weights as the language model alone does; transformers writes, and reads, the multimodal model's names too."""
    weights = load_file(directory / "model.safetensors")
    weights = {name.replace("model.language_model", "model"): weight for name, weight in weights.items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def _without_buffers(directory: Path) -> None:
    """Hide the buffers that transformers saves with linear attention from vLLM, which knows only published checkpoints.

    vLLM reads what an index names; transformers reads model.safetensors if there is one.
    """
    buffers = ("slope_rate", "query_decay", "key_decay", "diagonal_decay")
    weights = {
        name: weight for name, weight in load_file(directory / "model.safetensors").items() if not name.endswith(buffers)
    }
    save_file(weights, directory / "published.safetensors", metadata={"format": "pt"})
    index: dict[str, Any] = {"metadata": {}, "weight_map": dict.fromkeys(weights, "published.safetensors")}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


RECIPES: dict[str, Recipe] = {
    # The same model as Llama, weight for weight.
    **dict.fromkeys(
        ("AquilaModel", "AquilaForCausalLM", "CwmForCausalLM", "InternLMForCausalLM", "InternLM3ForCausalLM")
        + ("IQuestCoderForCausalLM", "LLaMAForCausalLM", "XverseForCausalLM"),
        Recipe("LlamaForCausalLM"),
    ),
    "BambaForCausalLM": Recipe("BambaForCausalLM", {"attn_layer_indices": [1, 3], **MAMBA2_MIXER}, {"attn_rotary_emb": 16}),
    # vLLM computes its GELU exactly, transformers by a tanh, which makes a difference of 2e-4.
    "BloomForCausalLM": Recipe(options=BLOOM),
    "Cohere2ForCausalLM": Recipe("Cohere2ForCausalLM", TIED | {"sliding_window": WINDOW}),
    "CohereForCausalLM": Recipe("CohereForCausalLM", TIED),
    # Configs as they are: dicts would be filled with entries that these classes refuse.
    "DbrxForCausalLM": Recipe(
        "DbrxForCausalLM",
        {
            "max_seq_len": 512,
            "attn_config": DbrxAttentionConfig(kv_n_heads=2, clip_qkv=1.0, rope_theta=5e5),
            "ffn_config": DbrxFFNConfig({"name": "silu"}, ffn_hidden_size=64, moe_num_experts=4, moe_top_k=4),
        },
    ),
    "DeepseekV2ForCausalLM": Recipe("DeepseekV2ForCausalLM", MLA | {"first_k_dense_replace": 1}),
    "DeepseekV3ForCausalLM": Recipe(
        "DeepseekV3ForCausalLM", MLA | {"first_k_dense_replace": 1, "routed_scaling_factor": 1.5}, SIGMOID_ROUTER
    ),
    # Published ones scale the routed experts; vLLM 0.16 scales the shared expert too, which transformers does not.
    "Dots1ForCausalLM": Recipe("Dots1ForCausalLM", {"first_k_dense_replace": 1}, SIGMOID_ROUTER),
    "Ernie4_5_MoeForCausalLM": Recipe("Ernie4_5_MoeForCausalLM", {"moe_num_experts": 4, "moe_k": 4}),
    "Exaone4ForCausalLM": Recipe("Exaone4ForCausalLM", {"sliding_window": WINDOW}),
    "Fairseq2LlamaForCausalLM": Recipe("LlamaForCausalLM", finish=_as_fairseq2),
    "FalconForCausalLM": Recipe("FalconForCausalLM", FALCON | {"new_decoder_architecture": True}),
    "FalconH1ForCausalLM": Recipe(
        "FalconH1ForCausalLM",
        MAMBA2_MIXER
        | {"mamba_d_ssm": 256, "embedding_multiplier": 3.0, "key_multiplier": 0.5, "mlp_multipliers": [0.8, 0.6]}
        | {"attention_out_multiplier": 0.9, "ssm_in_multiplier": 1.2, "ssm_out_multiplier": 0.7}
        | {"ssm_multipliers": [0.9, 0.8, 0.7, 0.6, 0.5]},
    ),
    "Gemma2ForCausalLM": Recipe(
        "Gemma2ForCausalLM",
        TIED | {"sliding_window": WINDOW, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 5.0},
        {"hidden_act": "gelu_pytorch_tanh"},
    ),
    "Gemma3ForCausalLM": Recipe(
        "Gemma3ForCausalLM",
        TIED | {"sliding_window": WINDOW, "query_pre_attn_scalar": 32, "layer_types": [SLIDING, SLIDING, SLIDING, FULL]},
    ),
    "Gemma3nForCausalLM": Recipe(
        "Gemma3nForCausalLM",
        GEMMA3N,
        {"hidden_act": "gelu_pytorch_tanh"},
        _without_wrapper,
    ),
    "GemmaForCausalLM": Recipe("GemmaForCausalLM", TIED),
    "Glm4MoeForCausalLM": Recipe(
        "Glm4MoeForCausalLM", QK_NORM | {"attention_bias": True, "head_dim": 32, "routed_scaling_factor": 1.5}
    ),
    "GptOssForCausalLM": Recipe("GptOssForCausalLM", {"sliding_window": WINDOW}, dtype=torch.bfloat16),
    "GPTJForCausalLM": Recipe("GPTJForCausalLM", {"rotary_dim": 16}),
    "GraniteForCausalLM": Recipe("GraniteForCausalLM", GRANITE),
    "GraniteMoeForCausalLM": Recipe("GraniteMoeForCausalLM", GRANITE),
    "GraniteMoeHybridForCausalLM": Recipe(
        "GraniteMoeHybridForCausalLM",
        GRANITE | MAMBA2_MIXER | {"shared_intermediate_size": 128, "layer_types": ["mamba", "attention"] * 2},
    ),
    "GraniteMoeSharedForCausalLM": Recipe("GraniteMoeSharedForCausalLM", GRANITE | {"shared_intermediate_size": 128}),
    "HunYuanDenseV1ForCausalLM": Recipe("HunYuanDenseV1ForCausalLM", saved=QK_NORM),
    "HunYuanMoEV1ForCausalLM": Recipe(
        "HunYuanMoEV1ForCausalLM",
        saved=QK_NORM | {"moe_intermediate_size": 256, "num_shared_expert": 1, "use_mixed_mlp_moe": True},
    ),
    "JambaForCausalLM": Recipe(
        "JambaForCausalLM", {"attn_layer_period": 2, "attn_layer_offset": 1, "use_mamba_kernels": False}
    ),
    "Lfm2ForCausalLM": Recipe(
        "Lfm2ForCausalLM",
        {"layer_types": ["conv", FULL] * 2, "block_auto_adjust_ff_dim": False},
        {"block_dim": 128, "block_ff_dim": 256, "conv_dim": 128},
    ),
    "Llama4ForCausalLM": Recipe("Llama4ForCausalLM", LLAMA4),
    "LongcatFlashForCausalLM": Recipe(
        "LongcatFlashForCausalLM",
        MLA | {"head_dim": 64, "zero_expert_num": 2, "moe_topk": 6, "routed_scaling_factor": 1.5},
        {"num_hidden_layers": LAYERS, "zero_expert_type": "identity"} | {"mla_scale_q_lora": True, "mla_scale_kv_lora": True},
    ),
    "Mamba2ForCausalLM": Recipe(
        "Mamba2ForCausalLM", {"num_heads": 4, "head_dim": 64, "n_groups": 1}, {"num_attention_heads": 4}
    ),
    **dict.fromkeys(
        ("MiniMaxForCausalLM", "MiniMaxM1ForCausalLM", "MiniMaxText01ForCausalLM"),
        Recipe(
            "MiniMaxForCausalLM",
            {"layer_types": ["linear_attention", FULL] * 2, "head_dim": 128}
            | {"linear_attn_alpha_factor": 1.2, "full_attn_beta_factor": 0.8},
            {"postnorm": True},
            finish=_without_buffers,
        ),
    ),
    "MistralForCausalLM": Recipe("MistralForCausalLM", {"sliding_window": WINDOW}),
    **dict.fromkeys(("MptForCausalLM", "MPTForCausalLM"), Recipe("MptForCausalLM", TIED | {"max_seq_len": 512})),
    "Olmo3ForCausalLM": Recipe("Olmo3ForCausalLM", {"sliding_window": WINDOW}),
    "OlmoForCausalLM": Recipe("OlmoForCausalLM", MULTI_HEAD | {"clip_qkv": 1.0}),
    "OrionForCausalLM": Recipe("StableLmForCausalLM", {"partial_rotary_factor": 1.0}, {"rms_norm_eps": 1e-5}),
    "Phi3ForCausalLM": Recipe("Phi3ForCausalLM", {"sliding_window": WINDOW}),
    "PhiForCausalLM": Recipe("PhiForCausalLM", MULTI_HEAD | {"intermediate_size": 512}),
    # Its router can do nothing but choose two.
    "PhiMoEForCausalLM": Recipe(
        "PhimoeForCausalLM",
        {"num_local_experts": 2, "num_experts_per_tok": 2, "attention_bias": True, "lm_head_bias": True},
    ),
    "Qwen3NextForCausalLM": Recipe(
        "Qwen3NextForCausalLM",
        {"layer_types": ["linear_attention"] * 3 + [FULL], "linear_num_key_heads": 2, "linear_num_value_heads": 4},
    ),
    # The form of Falcon-7B: one key-value head, one norm for attention and MLP.
    "RWForCausalLM": Recipe("FalconForCausalLM", FALCON | {"multi_query": True, "num_kv_heads": 1}),
    "StableLMEpochForCausalLM": Recipe("StableLmForCausalLM", {"use_qkv_bias": True}),
    "Starcoder2ForCausalLM": Recipe("Starcoder2ForCausalLM", TIED | {"sliding_window": WINDOW}),
    # With more than one hybrid layer transformers cannot save what they share.
    "Zamba2ForCausalLM": Recipe(
        "Zamba2ForCausalLM",
        {"layers_block_type": ["mamba", "mamba", "hybrid", "mamba"], "mamba_d_state": 128, "n_mamba_heads": 4}
        | {"num_key_value_heads": 4, "adapter_rank": 16, "use_mem_rope": True, "use_shared_attention_adapter": True},
    ),
}
