"""Text architectures that transformers lacks, L to Z."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.registry.recipes.recipe import LATENT_ATTENTION, Recipe

BASE: dict[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
LATENT: dict[str, Any] = LATENT_ATTENTION | {"q_lora_rank": 64}
# All of four routed experts, and a shared one.
MOE: dict[str, Any] = {"n_routed_experts": 4, "num_experts_per_tok": 4, "n_shared_experts": 1, "moe_intermediate_size": 64}
MOE |= {"n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 2.5}

PANGU_MOE = BASE | MOE | {"first_k_dense_replace": 1, "router_enable_expert_bias": True, "sandwich_norm": True}
PANGU_MOE |= {"num_nextn_predict_layers": 0}

NEMOTRON_H: dict[str, Any] = MOE | {
    "hybrid_override_pattern": "M-*E",
    "layers_block_type": ["mamba", "mlp", "attention", "moe"],
    "layer_norm_epsilon": 1e-5,
    "head_dim": 64,
    "attention_bias": False,
    "mlp_hidden_act": "relu2",
    "mlp_bias": False,
    "moe_shared_expert_intermediate_size": 64,
    "use_bias": False,
    "use_conv_bias": True,
    "conv_kernel": 4,
    "ssm_state_size": 128,
    "n_groups": 1,
    "mamba_num_heads": 4,
    "mamba_head_dim": 64,
    "mamba_hidden_act": "silu",
    "chunk_size": 128,
}

TELECHAT = Recipe(
    options={"n_layer": 4, "n_head": 4, "ffn_hidden_size": 256, "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0}
)

# From DeepSeek-V3's names of weights to Mistral's, one after the other.
MISTRAL_NAMES = {
    r"^model\.": "",
    r"embed_tokens": "tok_embeddings",
    r"lm_head": "output",
    r"input_layernorm": "attention_norm",
    r"post_attention_layernorm": "ffn_norm",
    r"_a_layernorm": "_a_norm",
    r"self_attn\.(q|kv|o)(\w*)_proj": r"self_attn.w\1\2",
    r"self_attn": "attention",
    r"mlp\.(?=\w+_proj)": "feed_forward.",
    r"mlp\.": "",
    r"gate_proj": "w1",
    r"down_proj": "w2",
    r"up_proj": "w3",
}


def add_mistral_weights(directory: Path) -> None:
    """Add the file that vLLM prefers; Hugging Face goes on reading its own, under its own names."""
    weights = {}
    for name, weight in load_file(directory / "model.safetensors").items():
        for pattern, replacement in MISTRAL_NAMES.items():
            name = re.sub(pattern, replacement, name)
        # A bias on the choice of experts, which Mistral's model has not, and which is nothing where all are chosen.
        if not name.endswith("e_score_correction_bias"):
            weights[name] = weight
    save_file(weights, directory / "consolidated.safetensors")


RECIPES: dict[str, Recipe] = {
    "Lfm2MoeForCausalLM": Recipe(
        options=MOE
        | {
            "model_type": "lfm2_moe",
            "hidden_size": 128,
            "num_experts": 4,
            "num_dense_layers": 2,
            "layer_types": ["conv", "full_attention"] * 2,
            "conv_L_cache": 3,
            "tie_embedding": False,
        }
    ),
    # Granite is the same model, with more multipliers.
    "MiniCPMForCausalLM": Recipe(
        "GraniteForCausalLM",
        {"embedding_multiplier": 12.0, "residual_multiplier": 0.7, "attention_multiplier": 32**-0.5},
        {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 64},
    ),
    "MiniCPM3ForCausalLM": Recipe(
        options=BASE
        | {"num_key_value_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 64, "head_dim": 64}
        | {"qk_nope_head_dim": 32, "qk_rope_head_dim": 32, "v_head_dim": 32}
        | {"scale_emb": 12.0, "scale_depth": 1.4, "dim_model_base": 64}
    ),
    # Its experts are scored by sigmoid; a CPU's know softmax only.
    "MiniMaxM2ForCausalLM": Recipe(
        options=BASE
        | {"head_dim": 64, "rotary_dim": 32, "scoring_func": "softmax", "use_routing_bias": True}
        | {"num_local_experts": 4, "num_experts_per_tok": 4, "num_mtp_modules": 0}
    ),
    "MiMoForCausalLM": Recipe("Qwen2ForCausalLM"),
    "MiMoV2FlashForCausalLM": Recipe(
        options=BASE
        | MOE
        | {
            "hybrid_layer_pattern": [0, 1, 1, 0],
            "moe_layer_freq": [0, 1, 1, 1],
            "layernorm_epsilon": 1e-5,
            "attention_bias": False,
            "attention_value_scale": 0.7,
            "partial_rotary_factor": 0.5,
            "head_dim": 64,
            "v_head_dim": 32,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 4,
            "swa_head_dim": 64,
            "swa_v_head_dim": 32,
            "swa_rope_theta": 1000.0,
            "sliding_window_size": 32,
            "add_swa_attention_sink_bias": True,
        },
        # A CPU has sinks in this precision only.
        dtype=torch.bfloat16,
    ),
    "MistralLarge3ForCausalLM": Recipe(
        "DeepseekV3ForCausalLM",
        LATENT | {"first_k_dense_replace": 1, "num_key_value_heads": 4},
        {"scoring_func": "sigmoid"},
        add_mistral_weights,
    ),
    "NemotronHForCausalLM": Recipe(options=NEMOTRON_H),
    "NemotronHPuzzleForCausalLM": Recipe(options=NEMOTRON_H | {"moe_latent_size": 64}),
    "OuroForCausalLM": Recipe(options=BASE | {"total_ut_steps": 2}),
    "PanguEmbeddedForCausalLM": Recipe("LlamaForCausalLM", {"attention_bias": True}, {"bias": True}),
    # With attention sinks; vLLM 0.16.0 loses the scales of their layers, and loads it nowhere.
    "PanguProMoEV2ForCausalLM": Recipe(
        options=PANGU_MOE
        | {
            "qk_nope_dim": 64,
            "qk_rope_dim": 64,
            "v_channels": 64,
            "head_dim": 128,
            "interleaved_sliding_window": [32, 32, 32, 512],
            "param_sink_number": 16,
            "param_sink_with_value": True,
        }
    ),
    "PanguUltraMoEForCausalLM": Recipe(
        options=PANGU_MOE | LATENT | {"model_type": "pangu_ultra_moe"},
        dtype=torch.bfloat16,
        environment={"VLLM_MLA_DISABLE": "0"},
    ),
    "Plamo2ForCausalLM": Recipe(
        options=BASE
        | {
            "layers_block_type": ["mamba", "attention"] * 2,
            "hidden_size_per_head": 64,
            "mamba_step": 2,
            "mamba_num_heads": 4,
            "mamba_d_state": 64,
            "mamba_d_conv": 4,
            "mamba_chunk_size": 128,
        }
    ),
    "Plamo3ForCausalLM": Recipe(
        options=BASE
        | {
            "head_dim": 32,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "interleaved_sliding_window": [32, None] * 2,
            "rope_local_theta": 1000.0,
        }
    ),
    "QWenLMHeadModel": Recipe(options=BASE | {"num_key_value_heads": 4, "layer_norm_epsilon": 1e-6}),
    "SolarForCausalLM": Recipe(
        options=BASE | {"bskcn_1": [1], "bskcn_2": [2], "bskcn_3": [2], "bskcn_4": [3], "bskcn_tv": [0.9, 0.8]}
    ),
    "Step1ForCausalLM": Recipe(options=BASE | {"num_attention_groups": 2}),
    "Step3TextForCausalLM": Recipe(
        options=BASE
        | {
            "model_type": "step3_text",
            "num_attention_groups": 1,
            "num_key_value_heads": 1,
            "head_dim": 64,
            "share_q_dim": 64,
            "max_position_embedding": 512,
            "moe_layers_enum": "1,3",
            "moe_num_experts": 4,
            "moe_top_k": 4,
            "moe_intermediate_size": 64,
            "share_expert_dim": 64,
        }
    ),
    # Scored and cut off (`swiglu_limits`) otherwise in earnest, which experts on a CPU do not know.
    "Step3p5ForCausalLM": Recipe(
        options={
            "model_type": "step3p5",
            "num_attention_groups": 2,
            "head_dim": 64,
            "layer_types": ["full_attention", "sliding_attention"] * 2,
            "sliding_window": 32,
            "attention_other_setting": {
                "attention_type": "sliding_attention",
                "num_attention_heads": 8,
                "num_attention_groups": 2,
                "head_dim": 64,
            },
            "use_head_wise_attn_gate": True,
            "rope_theta": [10000.0, 1000.0] * 2,
            "partial_rotary_factors": [0.5, 1.0] * 2,
            "moe_layers_enum": "1,2,3",
            "moe_num_experts": 4,
            "moe_top_k": 4,
            "moe_intermediate_size": 64,
            "share_expert_dim": 64,
            "moe_router_scaling_factor": 3.0,
            "swiglu_limits_shared": [0.0, 0.0, 0.0, 16.0],
        }
    ),
    "TeleChatForCausalLM": TELECHAT,
    "TeleChat2ForCausalLM": TELECHAT,
    # vLLM's class goes by Llama's model, without the multiplier of embeddings.
    "TeleFLMForCausalLM": Recipe(
        "LlamaForCausalLM", saved={"use_mup": True, "input_mult": 2.0, "output_mult": 1.0, "mup_scale_factor": 1.0}
    ),
}
