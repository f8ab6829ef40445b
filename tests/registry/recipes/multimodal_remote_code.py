"""Multimodal architectures that transformers lacks: what they wrap are the language models that prompts of text go through."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tiny_checkpoints import KIMI_REMOTE_CODE
from transformers import AutoTokenizer

from tests.registry.recipes.recipe import Recipe
from tests.registry.recipes.text_remote_code_l_to_z import NEMOTRON_H
from tests.registry.tiny import LAYERS

# Vision towers are never run, and mostly not even given memory; their configs have to be read all the same.
TOWER: dict[str, Any] = {
    "model_type": "tower",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_channels": 3,
    "image_size": 28,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "temporal_patch_size": 2,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-6,
}
CLIP = {**TOWER, "model_type": "clip_vision_model"}
SIGLIP = {**TOWER, "model_type": "siglip_vision_model"}
INTERN_VIT = {
    **TOWER,
    "model_type": "intern_vit_6b",
    "qkv_bias": True,
    "qk_normalization": False,
    "norm_type": "layer_norm",
    "initializer_factor": 1.0,
}
QWEN2_VIT = {
    **TOWER,
    "model_type": "qwen2_5_vl",
    "depth": 2,
    "num_heads": 2,
    "out_hidden_size": 128,
    "in_channels": 3,
    "window_size": 28,
    "fullatt_block_indexes": [1],
    "tokens_per_second": 2,
}
AUDIO: dict[str, Any] = {"d_model": 64, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 64}
WHISPER = {**AUDIO, "model_type": "whisper", "num_mel_bins": 80, "max_source_positions": 100}

LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]}
MISTRAL = {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": None}
QWEN2 = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]}
QWEN3 = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 32}
# Published by remote code: every entry that vLLM reads is in the file.
LLAMA_LIKE: dict[str, Any] = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0}
# Temporal, height and width parts of half a head's 32 dimensions.
MROPE = {"rope_scaling": {"rope_type": "default", "type": "default", "mrope_section": [4, 6, 6]}}
EXPERTS = {
    "model_type": "deepseek_v2",
    "architectures": ["DeepseekV2ForCausalLM"],
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "num_experts_per_tok": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "greedy",
    "scoring_func": "softmax",
    "norm_topk_prob": False,
    "routed_scaling_factor": 1.0,
}
# The dimensions of the real models, which are those that MLA kernels take.
LATENT = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 512,
    "q_lora_rank": None,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
}
DEEPSEEK_V3 = {
    **EXPERTS,
    **LATENT,
    "model_type": "deepseek_v3",
    "architectures": ["DeepseekV3ForCausalLM"],
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "routed_scaling_factor": 1.5,
}
NO_LATENT = {"kv_lora_rank": None, "q_lora_rank": None, "qk_rope_head_dim": 0, "qk_nope_head_dim": 0, "v_head_dim": 0}
INTERNVL = {
    "vision_config": INTERN_VIT,
    "force_image_size": 28,
    "downsample_ratio": 0.5,
    "ps_version": "v2",
    "select_layer": -1,
    "min_dynamic_patch": 1,
    "max_dynamic_patch": 1,
    "dynamic_image_size": True,
    "use_thumbnail": True,
}
LLAVA = {
    "projector_hidden_act": "gelu",
    "multimodal_projector_bias": True,
    "vision_feature_layer": -1,
    "vision_feature_select_strategy": "full",
    "image_grid_pinpoints": [[28, 28]],
    "image_token_index": 300,
}
PANGU_PROCESSOR = """
from transformers import ProcessorMixin


class TinyProcessor(ProcessorMixin):
    attributes = ["image_processor"]
    image_processor_class = "AutoImageProcessor"
"""
TOKEN_IDS = {"image_token_id": 300, "video_token_id": 301, "vision_start_token_id": 302, "vision_end_token_id": 303}


def _image_token(directory: Path) -> None:
    """A token that wrappers look up in the tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(directory)
    tokenizer.add_tokens(["<image>"], special_tokens=True)
    tokenizer.save_pretrained(directory)


def _kimi_image_processor(directory: Path) -> None:
    """Asked as soon as vLLM is asked for the modalities."""
    name = "image_processing_tiny_kimi"
    (directory / f"{name}.py").write_text(KIMI_REMOTE_CODE[f"{name}.py"])
    processor = {
        "image_processor_type": "TinyKimiImageProcessor",
        "auto_map": {"AutoImageProcessor": f"{name}.TinyKimiImageProcessor"},
    }
    (directory / "preprocessor_config.json").write_text(json.dumps(processor))


def _pangu_processor(directory: Path) -> None:
    """Read when the model is made, for what it normalises pixels by."""
    name = "processing_tiny_pangu"
    (directory / f"{name}.py").write_text(PANGU_PROCESSOR)
    (directory / "processor_config.json").write_text(
        json.dumps({"processor_class": "TinyProcessor", "auto_map": {"AutoProcessor": f"{name}.TinyProcessor"}})
    )
    (directory / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "Qwen2VLImageProcessor", "patch_size": 14})
    )


def _deepseek(language_model: Mapping[str, Any], **options: Any) -> Recipe:
    return Recipe(
        options={
            **options,
            "model_type": "deepseek_vl_v2",
            "language_config": {**EXPERTS, **language_model},
            "vision_config": {"width": 64, "layers": 2, "heads": 2},
            "projector_config": {"input_dim": 64, "n_embed": 128, "projector_type": "downsample_mlp_gelu"},
            "tile_tag": "2D",
        },
        finish=_image_token,
    )


def _keye(model_type: str) -> Recipe:
    return Recipe(
        options={
            **LLAMA_LIKE,
            **MROPE,
            **TOKEN_IDS,
            "model_type": model_type,
            "head_dim": 32,
            "attention_bias": False,
            "vision_config": TOWER,
        }
    )


RECIPES: dict[str, Recipe] = {
    "AudioFlamingo3ForConditionalGeneration": Recipe(
        options={"model_type": "audioflamingo3", "text_config": QWEN2, "audio_config": WHISPER}
    ),
    "BagelForConditionalGeneration": Recipe(
        options={"model_type": "bagel", "llm_config": QWEN2, "vit_config": SIGLIP, "vit_max_num_patch_per_side": 2}
    ),
    "BeeForConditionalGeneration": Recipe(
        options={**LLAVA, "model_type": "bee", "text_config": QWEN3, "vision_config": SIGLIP}
    ),
    # Their remote code derives from the language model's config.
    "DeepseekOCR2ForCausalLM": _deepseek(NO_LATENT, num_hidden_layers=LAYERS),
    "DeepseekOCRForCausalLM": _deepseek(NO_LATENT, num_hidden_layers=LAYERS),
    "DeepseekVLV2ForCausalLM": _deepseek(LATENT),
    "DotsOCRForCausalLM": Recipe(
        options={
            **LLAMA_LIKE,
            "model_type": "dots_ocr",
            "config_class": "DotsOCRConfig",
            "attention_bias": True,
            "vision_config": {**TOWER, "embed_dim": 64, "rms_norm_eps": 1e-5, "use_bias": False, "post_norm": True},
        }
    ),
    "Eagle2_5_VLForConditionalGeneration": Recipe(
        options={**INTERNVL, "model_type": "eagle_2_5_vl", "text_config": QWEN2, "vision_config": SIGLIP}
    ),
    "Ernie4_5_VLMoeForConditionalGeneration": Recipe(
        options={
            **LLAMA_LIKE,
            "model_type": "ernie4_5_moe_vl",
            "head_dim": 32,
            "use_bias": False,
            "rope_scaling": {"type": "default", "mrope_section": [4, 4, 8]},
            "freq_allocation": 8,
            "moe_num_experts": [4, 4],
            "moe_k": 4,
            "moe_num_shared_experts": 1,
            "moe_intermediate_size": [64, 32],
            "moe_layer_start_index": [1, 1],
            "moe_layer_end_index": [LAYERS - 1, LAYERS - 2],
            "moe_layer_interval": 1,
            "vision_config": {**QWEN2_VIT, "mlp_ratio": 1, "embed_dim": 64, "hidden_act": "quick_gelu"},
            "pixel_hidden_size": 64,
            "use_temporal_conv": True,
            "spatial_conv_size": 2,
            "temporal_conv_size": 2,
            "im_patch_id": 300,
        }
    ),
    "FunAudioChatForConditionalGeneration": Recipe(
        options={
            "model_type": "funaudiochat",
            "text_config": QWEN3,
            "audio_config": {**AUDIO, "output_dim": 128, "codebook_size": 64, "pad_token_id": 0, "max_source_positions": 100},
        }
    ),
    "GLM4VForCausalLM": Recipe(
        options={
            "model_type": "chatglm",
            "num_layers": LAYERS,
            "padded_vocab_size": 512,
            "ffn_hidden_size": 256,
            "kv_channels": 32,
            "seq_length": 512,
            "layernorm_epsilon": 1e-5,
            "add_qkv_bias": True,
            "multi_query_attention": True,
            "multi_query_group_num": 2,
            "original_rope": True,
            "rope_ratio": 1,
            "boi_token_id": 300,
            "eoi_token_id": 301,
            "vision_config": {
                **TOWER,
                "num_heads": 2,
                "num_positions": 5,
                "in_channels": 3,
                "dropout_prob": 0.0,
                "scaling_factor": 8,
            },
        }
    ),
    "GlmAsrForConditionalGeneration": Recipe(options={"model_type": "glmasr", "text_config": LLAMA, "audio_config": WHISPER}),
    "GlmOcrForConditionalGeneration": Recipe(
        options={
            **TOKEN_IDS,
            "model_type": "glm_ocr",
            "text_config": {
                **LLAMA_LIKE,
                **MROPE,
                "model_type": "glm_ocr_text",
                "head_dim": 32,
                "attention_bias": False,
                "partial_rotary_factor": 1.0,
            },
            "vision_config": {**QWEN2_VIT, "hidden_act": "silu", "rms_norm_eps": 1e-6},
        }
    ),
    "H2OVLChatModel": Recipe(options={**INTERNVL, "model_type": "h2ovl_chat", "llm_config": MISTRAL, "use_msac": True}),
    "HunYuanVLForConditionalGeneration": Recipe(
        options={
            **LLAMA_LIKE,
            "model_type": "hunyuan_vl",
            "head_dim": 32,
            "use_qk_norm": True,
            "image_start_token_id": 300,
            "rope_scaling": {"type": "xdrope", "alpha": 1000.0, "factor": 1.0, "xdrope_section": [4, 4, 4, 4]},
            "vision_config": TOWER,
        }
    ),
    "InternS1ForConditionalGeneration": Recipe(
        options={
            **INTERNVL,
            "model_type": "interns1",
            "projector_hidden_act": "gelu",
            "text_config": QWEN3,
            "vision_config": {
                **TOWER,
                "model_type": "interns1_vision",
                "image_size": [28, 28],
                "patch_size": [14, 14],
                "use_mask_token": False,
                "use_absolute_position_embeddings": True,
                "attention_bias": True,
                "use_qk_norm": False,
                "norm_type": "layer_norm",
                "layer_scale_init_value": 0.1,
                "use_mean_pooling": True,
            },
        }
    ),
    "InternS1ProForConditionalGeneration": Recipe(
        options={
            **TOKEN_IDS,
            "model_type": "interns1_pro",
            "text_config": {
                "model_type": "interns1_pro_text",
                "architectures": ["Qwen3MoeForCausalLM"],
                **LLAMA_LIKE,
                "head_dim": 32,
                "num_experts": 4,
                "num_experts_per_tok": 4,
                "moe_intermediate_size": 64,
                "norm_topk_prob": True,
                "decoder_sparse_step": 1,
                "mlp_only_layers": [0],
                "router_n_groups": 2,
                "rope_scaling": {
                    "rope_type": "default",
                    "fope_init_factor": 0.5,
                    "fope_sep_head": True,
                    "num_inv_freq": None,
                },
            },
            "vision_config": {**QWEN2_VIT, "model_type": "interns1_pro_vision"},
        }
    ),
    "InternVLChatModel": Recipe(
        options={
            **INTERNVL,
            "model_type": "internvl_chat",
            "llm_config": {
                **LLAMA_LIKE,
                "model_type": "internlm2",
                "architectures": ["InternLM2ForCausalLM"],
                "bias": False,
            },
        }
    ),
    "IsaacForConditionalGeneration": Recipe(
        options={
            **QWEN3,
            "model_type": "isaac",
            "rope_scaling": {"rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True},
            "vision_config": {**TOWER, "pixel_shuffle_scale_factor": 2, "num_patches": 4},
            "max_sequence_length": 512,
        },
        finish=_image_token,
    ),
    "KananaVForConditionalGeneration": Recipe(
        options={
            "model_type": "kanana-1.5-v",
            "text_config": LLAMA,
            "vision_config": {**QWEN2_VIT, "model_type": "qwen2_vl", "embed_dim": 64, "mlp_ratio": 4.0},
            "projector_config": {**TOWER, "encoder_hidden_size": 64, "output_hidden_size": 128, "mlp_depth": 1}
            | {"merge_size": 2, "pos_emb_size": 4},
        }
    ),
    "KeyeForConditionalGeneration": _keye("Keye"),
    "KeyeVL1_5ForConditionalGeneration": _keye("KeyeVL1_5"),
    "KimiK25ForConditionalGeneration": Recipe(
        options={
            "model_type": "kimi_k25",
            "text_config": {**DEEPSEEK_V3, "q_lora_rank": 256},
            "vision_config": {**TOWER, "model_type": "kimi_k25_vision"},
            "media_placeholder_token_id": 300,
        },
        finish=_kimi_image_processor,
    ),
    "KimiVLForConditionalGeneration": Recipe(
        options={
            "model_type": "kimi_vl",
            "text_config": DEEPSEEK_V3,
            "vision_config": {**TOWER, "model_type": "moonvit"},
            "media_placeholder_token_id": 300,
        }
    ),
    "Llama_Nemotron_Nano_VL": Recipe(
        options={
            **INTERNVL,
            "model_type": "Llama_Nemotron_Nano_VL",
            "llm_config": LLAMA,
            "vision_config": SIGLIP,
            "patch_size": 14,
            "vit_hidden_size": 64,
            "projector_hidden_size": 64,
        }
    ),
    "MiDashengLMModel": Recipe(
        options={
            "model_type": "midashenglm",
            # The default has three axes of positions, which vLLM's class cannot make; on text they are the same.
            "text_config": {"model_type": "qwen2_5_omni_text", "rope_scaling": {"rope_type": "default"}},
            "audio_encoder_config": {"embed_dim": 64, "depth": 2, "num_heads": 2},
        }
    ),
    "MiniCPMO": Recipe(
        options={
            **LLAMA_LIKE,
            "model_type": "minicpmo",
            "version": "4.5",
            "head_dim": 32,
            "attention_bias": False,
            "vision_config": SIGLIP,
            "audio_config": WHISPER,
            "audio_pool_step": 2,
            "audio_chunk_length": 1.0,
            "query_num": 4,
            "drop_vision_last_layer": False,
        }
    ),
    "MiniCPMV": Recipe(
        options={
            **LLAMA_LIKE,
            "model_type": "minicpmv",
            "version": "2.6",
            "vision_config": SIGLIP,
            "query_num": 4,
            "drop_vision_last_layer": False,
        }
    ),
    "MiniMaxVL01ForConditionalGeneration": Recipe(
        options={
            **LLAVA,
            "model_type": "minimax_vl_01",
            "text_config": {
                **LLAMA_LIKE,
                "model_type": "minimax_text_01",
                "architectures": ["MiniMaxText01ForCausalLM"],
                "head_dim": 128,
                "rotary_dim": 64,
                "attn_type_list": [0, 0, 0, 1],
                "num_local_experts": 4,
                "num_experts_per_tok": 4,
                "layernorm_linear_attention_alpha": 1.5,
                "layernorm_full_attention_alpha": 2.0,
                "layernorm_mlp_alpha": 1.25,
                "postnorm": True,
                "shared_intermediate_size": 0,
            },
            "vision_config": CLIP,
        }
    ),
    "Molmo2ForConditionalGeneration": Recipe(
        options={
            "model_type": "molmo2",
            "text_config": {
                "model_type": "molmo2_text",
                "hidden_act": "silu",
                "rope_theta": 10000.0,
                "rope_scaling_layers": None,
                "head_dim": 32,
                "additional_vocab_size": 8,
                "qkv_bias": False,
                "use_qk_norm": True,
                "qk_norm_type": "qwen3",
                "layer_norm_eps": 1e-6,
                "norm_after": False,
            },
            "vit_config": {
                **TOWER,
                "model_type": "molmo2_vit",
                "num_key_value_heads": 2,
                "head_dim": 32,
                "image_default_input_size": [28, 28],
                "image_patch_size": 14,
                "image_num_pos": 4,
            },
            "adapter_config": {
                **TOWER,
                "model_type": "molmo2_adapter",
                "hidden_act": "silu",
                "vit_layers": [-1, -2],
                "pooling_attention_mask": True,
                "num_key_value_heads": 2,
                "head_dim": 32,
                "text_hidden_size": 128,
            },
            "image_patch_id": 300,
        }
    ),
    "MolmoForCausalLM": Recipe(
        options={
            "model_type": "molmo",
            "rope_theta": 10000.0,
            "qkv_bias": True,
            "attention_layer_norm": False,
            "norm_after": False,
            "layer_norm_type": "rms",
            "layer_norm_eps": 1e-6,
            "embedding_size": 512,
            "weight_tying": False,
        }
    ),
    "MusicFlamingoForConditionalGeneration": Recipe(
        options={"model_type": "musicflamingo", "text_config": QWEN2, "audio_config": WHISPER}
    ),
    "NVLM_D": Recipe(options={**INTERNVL, "model_type": "NVLM_D", "llm_config": QWEN2}),
    "NemotronH_Nano_VL_V2": Recipe(
        options={
            **INTERNVL,
            "model_type": "NemotronH_Nano_VL_V2",
            "llm_config": {
                **LLAMA_LIKE,
                **NEMOTRON_H,
                "model_type": "nemotron_h",
                "architectures": ["NemotronHForCausalLM"],
                "dtype": "float32",
            },
            "vision_config": {
                "model_type": "radio",
                "patch_size": 16,
                "preferred_resolution": [32, 32],
                "args": {"model": "vit_base_patch16_224", "cpe_max_size": 32, "teachers": [], "register_multiple": None},
            },
            "patch_size": 16,
            "force_image_size": 32,
            "template": "tiny",
            "image_tag_type": "internal",
            "vit_hidden_size": 64,
            "projector_hidden_size": 64,
            "norm_mean": [0.5, 0.5, 0.5],
            "norm_std": [0.5, 0.5, 0.5],
        }
    ),
    "NemotronParseForConditionalGeneration": Recipe(
        options={
            "model_type": "nemotron_parse",
            "is_encoder_decoder": True,
            "encoder": {**TOWER, "model_type": "radio"},
            "decoder": {"model_type": "mbart", "d_model": 128, "decoder_layers": LAYERS, "vocab_size": 512},
            "image_size": [28, 28],
        }
    ),
    "OpenCUAForConditionalGeneration": Recipe(
        options={**TOKEN_IDS, "model_type": "opencua", "text_config": QWEN2, "vision_config": QWEN2_VIT}
    ),
    "OpenPanguVLForConditionalGeneration": Recipe(
        options={
            **LLAMA_LIKE,
            **TOKEN_IDS,
            "model_type": "openpangu_vl",
            "bias": True,
            "rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6], "mrope_interleaved": True},
            "vision_config": {**QWEN2_VIT, "hidden_act": "silu", "mm_unit_vision_select_layer": [-1, -2]},
        },
        finish=_pangu_processor,
    ),
    "Ovis": Recipe(
        options={
            "model_type": "ovis",
            "llm_config": QWEN2,
            "hidden_size": 128,
            "visual_tokenizer_config": {
                "model_type": "siglip_visual_tokenizer",
                "vocab_size": 64,
                "backbone_config": SIGLIP,
            },
        }
    ),
    "Ovis2_5": Recipe(
        options={
            "model_type": "ovis2_5",
            "llm_config": QWEN3,
            "hidden_size": 128,
            "visual_vocab_size": 64,
            "vit_config": {
                **TOWER,
                "model_type": "siglip2_navit",
                "attention_dropout": 0.0,
                "hidden_stride": 2,
                "window_size": 28,
                "fullatt_block_indexes": None,
                "use_rope": True,
                "preserve_original_pe": True,
                "num_patches": 4,
            },
        }
    ),
    "PaddleOCRVLForConditionalGeneration": Recipe(
        options={
            **LLAMA_LIKE,
            **MROPE,
            **TOKEN_IDS,
            "model_type": "paddleocr_vl",
            "head_dim": 32,
            "use_bias": False,
            "vision_config": TOWER,
        }
    ),
    "Phi3VForCausalLM": Recipe(
        options={
            **LLAMA_LIKE,
            "model_type": "phi3_v",
            "img_processor": {"image_dim_out": 1024, "num_img_tokens": 4},
            "embd_layer": {"use_hd_transform": True, "with_learnable_separator": True, "hd_transform_order": "sub_glb"},
        }
    ),
    "Phi4MMForCausalLM": Recipe(
        options={
            **LLAMA_LIKE,
            "model_type": "phi4mm",
            "img_processor": None,
            "embd_layer": {"audio_embd_layer": {"embedding_cls": "audio", "projection_cls": "mlp"}},
            "audio_processor": {
                "name": "cascades",
                "config": {
                    "input_size": 80,
                    "chunk_size": -1,
                    "left_chunk": 18,
                    "attention_dim": 64,
                    "attention_heads": 2,
                    "linear_units": 64,
                    "num_blocks": 1,
                    "input_layer": "nemo_conv",
                    "nemo_conv_settings": {"conv_channels": 64},
                    "depthwise_seperable_out_channel": 64,
                    "ext_pw_out_channel": 64,
                    "time_reduction": 8,
                    "encoder_embedding_config": {"input_size": 80},
                    "relative_attention_bias_args": {"type": "t5", "t5_bias_max_distance": 500},
                    "causal": True,
                },
            },
        }
    ),
    "Qwen3ASRForConditionalGeneration": Recipe(
        options={
            "model_type": "qwen3_asr",
            "thinker_config": {
                "text_config": {"head_dim": 32, **MROPE},
                "audio_config": {**AUDIO, "num_mel_bins": 80, "output_dim": 128, "downsample_hidden_size": 32},
            },
        }
    ),
    "QwenVLForConditionalGeneration": Recipe(
        options={
            "model_type": "qwen",
            "intermediate_size": 512,
            "layer_norm_epsilon": 1e-6,
            "rope_theta": 10000.0,
            "visual": {
                "image_size": 28,
                "patch_size": 14,
                "width": 128,
                "layers": 2,
                "heads": 2,
                "mlp_ratio": 1.0,
                "n_queries": 4,
                "output_dim": 128,
            },
        }
    ),
    "RForConditionalGeneration": Recipe(options={**LLAVA, "model_type": "r", "text_config": QWEN2, "vision_config": SIGLIP}),
    "SkyworkR1VChatModel": Recipe(options={**INTERNVL, "model_type": "skywork_chat", "llm_config": QWEN2}),
    "Step3VLForConditionalGeneration": Recipe(
        options={
            "model_type": "step3_vl",
            "text_config": {
                "model_type": "step3_text",
                "architectures": ["Step3TextForCausalLM"],
                "num_attention_groups": 1,
                "head_dim": 32,
                "share_q_dim": 64,
                "share_expert_dim": 64,
                "moe_intermediate_size": 64,
                "moe_num_experts": 4,
                "moe_top_k": 4,
                "moe_layers_enum": "1,2,3",
                "norm_expert_weight": False,
                "max_seq_len": 512,
                "max_position_embedding": 512,
            },
            "vision_config": {**TOWER, "output_hidden_size": 64},
        }
    ),
    "StepVLForConditionalGeneration": Recipe(
        options={
            "model_type": "step_robotics",
            "text_config": QWEN3,
            "projector_bias": False,
            "vision_config": {
                "model_type": "perception_encoder",
                "patch_size": 14,
                "image_size": 28,
                "width": 64,
                "layers": 2,
                "heads": 2,
                "output_dim": None,
                "mlp_ratio": 2.0,
                "ls_init_value": 0.1,
                "hidden_act": "quick_gelu",
                "use_abs_posemb": True,
                "use_cls_token": False,
                "use_rope2d": True,
                "use_ln_pre": True,
                "use_ln_post": False,
            },
        }
    ),
    "Tarsier2ForConditionalGeneration": Recipe(
        options={
            **TOKEN_IDS,
            "model_type": "tarsier2",
            # transformers reads the architecture from there.
            "text_config": {
                **MROPE,
                "model_type": "qwen2_vl_text",
                "architectures": ["Tarsier2ForConditionalGeneration"],
            },
            "vision_config": {**TOWER, "model_type": "qwen2_vl", "depth": 2, "embed_dim": 64, "num_heads": 2},
        }
    ),
    "TarsierForConditionalGeneration": Recipe(
        options={
            **LLAVA,
            "model_type": "llava",
            "text_config": LLAMA,
            "vision_config": CLIP,
            "image_newline_idx": 301,
            "image_new_idx": 302,
        }
    ),
    "UltravoxModel": Recipe(
        options={
            "model_type": "ultravox",
            "text_config": LLAMA,
            "audio_config": WHISPER,
            "hidden_size": 64,
            "audio_token_index": 300,
        }
    ),
}
