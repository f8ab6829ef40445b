"""Text architectures that transformers lacks, A to K."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.registry.recipes.recipe import LATENT_ATTENTION, Recipe
from tests.registry.tiny import HIDDEN_SIZE, LAYERS, SIZES

LLAMA = {"hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "norm_topk_prob": True}
SLIDING = {
    "sliding_window": 32,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
}
BAILING = LLAMA | EXPERTS | {"head_dim": 32, "use_bias": False, "use_qkv_bias": False, "embedding_dropout": 0.0}
CHATGLM = {
    "model_type": "chatglm",
    "num_layers": LAYERS,
    "padded_vocab_size": SIZES["vocab_size"],
    "ffn_hidden_size": 256,
    "kv_channels": 32,
    "seq_length": 512,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "add_qkv_bias": True,
    "original_rope": True,
}
DEEPSEEK_V3 = LATENT_ATTENTION | {"q_lora_rank": 256, "first_k_dense_replace": 1, "num_key_value_heads": 4}
# What transformers takes for granted and does not save.
ROUTER = {"scoring_func": "sigmoid", "topk_method": "noaux_tc"}
INDEXER = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
MLA = {"VLLM_MLA_DISABLE": "0"}

# vLLM reads the blocks' attributes, which dicts do not have.
BLOCKS = """
    @property
    def block_configs(self):
        import json
        from types import SimpleNamespace

        return json.loads(json.dumps(self.blocks), object_hook=lambda block: SimpleNamespace(**block))
"""


def _block(group: int = 2, width: int = 256, *, attention: bool = True, ffn: bool = True) -> dict[str, Any]:
    """A layer of an architecture found by search: heads per key-value head, width of the MLP, and what is left out."""
    return {
        "attention": {"no_op": not attention, "n_heads_in_group": group},
        "ffn": {"no_op": not ffn, "intermediate_size": width},
    }


def _add_block_configs(directory: Path) -> None:
    with (directory / "configuration_tiny.py").open("a") as file:
        file.write(BLOCKS)


def _add_indexers(directory: Path) -> None:
    """Give DeepSeek-V3's checkpoint V3.2's indexers; contexts shorter than `index_topk` they let attention see whole."""
    path = directory / "model.safetensors"
    weights = load_file(path)
    heads, width = INDEXER["index_n_heads"], INDEXER["index_head_dim"]
    generator = torch.Generator().manual_seed(0)
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}.self_attn.indexer"
        for name, shape in {
            "wq_b": (heads * width, DEEPSEEK_V3["q_lora_rank"]),
            "wk": (width, HIDDEN_SIZE),
            "weights_proj": (heads, HIDDEN_SIZE),
        }.items():
            weights[f"{prefix}.{name}.weight"] = (torch.randn(shape, generator=generator) * 0.06).bfloat16()
        weights |= {f"{prefix}.k_norm.weight": torch.ones(width), f"{prefix}.k_norm.bias": torch.zeros(width)}
    save_file(weights, path, {"format": "pt"})


def _sparse(**saved: Any) -> Recipe:
    return Recipe(
        "DeepseekV3ForCausalLM",
        DEEPSEEK_V3,
        ROUTER | INDEXER | {"model_type": "deepseek_v32"} | saved,
        finish=_add_indexers,
        environment=MLA,
    )


RECIPES: dict[str, Recipe] = {
    "AfmoeForCausalLM": Recipe(
        options=LLAMA
        | EXPERTS
        | SLIDING
        | {"model_type": "afmoe", "head_dim": 32, "num_dense_layers": 1, "num_shared_experts": 1, "route_scale": 2.5}
        | {"mup_enabled": True}
    ),
    "ArcticForCausalLM": Recipe(
        options=LLAMA | {"num_local_experts": 4, "num_experts_per_tok": 4, "moe_layer_frequency": 2, "use_residual": True}
    ),
    # Two spellings of one name, and two position embeddings: rotary and ALiBi.
    **dict.fromkeys(("BaiChuanForCausalLM", "BaichuanForCausalLM"), Recipe(options=LLAMA)),
    "BailingMoeForCausalLM": Recipe(options=BAILING | {"num_shared_experts": 2, "first_k_dense_replace": 0}),
    "BailingMoeV2ForCausalLM": Recipe(
        options=BAILING
        | {"num_shared_experts": 1, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5}
        | {"score_function": "sigmoid", "moe_router_enable_expert_bias": True, "router_dtype": "fp32"}
        | {"use_qk_norm": True, "use_rmsnorm": True, "rotary_dim": 16}
    ),
    **dict.fromkeys(("ChatGLMForConditionalGeneration", "ChatGLMModel"), Recipe(options=CHATGLM)),
    "DeciLMForCausalLM": Recipe(
        options=LLAMA
        | {"model_type": "nemotron-nas"}
        | {"blocks": [_block(), _block(attention=False), _block(group=4, width=64), _block(ffn=False)]},
        finish=_add_block_configs,
    ),
    "DeepseekForCausalLM": Recipe(
        options=LLAMA
        | {"model_type": "deepseek", "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_routed_experts": 4}
        | {"n_shared_experts": 2, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "norm_topk_prob": False}
    ),
    "DeepseekV32ForCausalLM": _sparse(),
    "ExaoneForCausalLM": Recipe(
        options={"activation_function": "silu", "layer_norm_epsilon": 1e-5, "rope_theta": 10000.0, "head_dim": 32}
    ),
    "ExaoneMoEForCausalLM": Recipe(
        options=LLAMA
        | EXPERTS
        | SLIDING
        | {"head_dim": 32, "num_shared_experts": 1, "n_group": 1, "topk_group": 1, "routed_scaling_factor": 2.5}
        | {"is_moe_layer": [False, True, True, True]}
    ),
    # DeepSeek-V3's mathematics, weight for weight.
    "Glm4MoeLiteForCausalLM": Recipe("DeepseekV3ForCausalLM", DEEPSEEK_V3),
    "GlmMoeDsaForCausalLM": _sparse(indexer_rope_interleave=True),
    "GritLM": Recipe("MistralForCausalLM", {"sliding_window": 32}),
    "Grok1ForCausalLM": Recipe(
        options=LLAMA
        | EXPERTS
        | {"head_dim": 32, "residual_moe": True, "attn_logit_softcapping": 30.0, "router_logit_softcapping": 30.0}
    ),
    "Grok1ModelForCausalLM": Recipe(
        options=LLAMA | {"num_experts": 4, "num_experts_per_tok": 4, "embedding_multiplier_scale": 4.0}
    ),
    "HCXVisionForCausalLM": Recipe(
        options={
            "model_type": "hyperclovax_vlm",
            "vision_config": {
                "model_type": "siglip_vision_model",
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 2,
                "image_size": 32,
                "patch_size": 16,
            },
            "text_config": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
            "mm_projector_type": "linear",
            "anyres": True,
            "max_num_grids": 4,
            "use_1x1_grid": True,
        },
    ),
    "IQuestLoopCoderForCausalLM": Recipe(options=LLAMA | {"loop_num": 2, "loop_window_size": 32}),
    "InternLM2ForCausalLM": Recipe(options=LLAMA),
    "InternLM2VEForCausalLM": Recipe(options=LLAMA),
    "JAISLMHeadModel": Recipe(
        options={
            "model_type": "jais",
            "n_embd": HIDDEN_SIZE,
            "n_layer": LAYERS,
            "n_head": 4,
            "n_inner": 256,
            "n_positions": 512,
        }
        | {"activation_function": "swiglu", "position_embedding_type": "alibi", "mup_embeddings_scale": 2.0}
    ),
    "Jais2ForCausalLM": Recipe(
        options={"hidden_act": "relu2", "layer_norm_eps": 1e-5, "rope_theta": 10000.0, "attention_bias": True, "mlp_bias": True}
    ),
    "KimiLinearForCausalLM": Recipe(
        options=LLAMA
        | LATENT_ATTENTION
        | {"model_type": "kimi_linear", "q_lora_rank": None, "mla_use_nope": True, "first_k_dense_replace": 1}
        | {"num_experts": 4, "num_experts_per_token": 4, "moe_intermediate_size": 64, "num_shared_experts": 1}
        | {
            "linear_attn_config": {
                "kda_layers": [1, 2, 4],
                "full_attn_layers": [3],
                "num_heads": 4,
                "head_dim": 128,
                "short_conv_kernel_size": 4,
            }
        },
        environment=MLA,
    ),
}
