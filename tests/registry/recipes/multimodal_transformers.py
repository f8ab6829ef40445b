"""Multimodal architectures that transformers has, under vLLM's name or another."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import (
    Blip2Config,
    Gemma3nConfig,
    PaliGemmaConfig,
    PretrainedConfig,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from tests.registry.recipes.recipe import Recipe
from tests.registry.recipes.text_transformers import GEMMA3N, LLAMA4
from tests.registry.tiny import HIDDEN_SIZE, LAYERS, VOCABULARY_SIZE, edit_config, randomize, shrunken, write_config

Options = dict[str, Any]

PLACEHOLDER = VOCABULARY_SIZE - 1
SLIDING_AND_FULL = {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"] * 2}
# How the three axes of a position share the dimensions of a head.
MROPE = {"rope_scaling": {"rope_type": "default", "mrope_section": [4, 6, 6]}}
MROPE_HALF = {"rope_scaling": {"rope_type": "default", "mrope_section": [2, 3, 3]}, "partial_rotary_factor": 0.5}
MROPE_INTERLEAVED = {"rope_scaling": {"rope_type": "default", "mrope_section": [6, 5, 5], "mrope_interleaved": True}}
# transformers does not say which half of these models is the decoder; their numbers of layers do.
SHORT_ENCODER = {"vision_config": {"num_hidden_layers": 2}}
VIT = {"depth": 2, "num_heads": 4}
DEEPSTACK_VIT = VIT | {"out_hidden_size": HIDDEN_SIZE, "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16}
DEEPSTACK_VIT |= {"image_size": 64, "apply_vit_abs_pos_embed": True}
WHISPER_ENCODER = {"encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 256, "num_mel_bins": 16}
MISTRAL_PARAMS: Options = {
    "dim": HIDDEN_SIZE,
    "n_layers": LAYERS,
    "head_dim": 32,
    "hidden_dim": 256,
    "n_heads": 4,
    "n_kv_heads": 2,
}
MISTRAL_PARAMS |= {"norm_eps": 1e-6, "vocab_size": VOCABULARY_SIZE, "rope_theta": 10000.0, "max_position_embeddings": 512}


def _language_model(architecture: str, **options: Any) -> Options:
    """A text config that names its architecture, as published ones do: vLLM looks the language model up by it."""
    return {"text_config": {"architectures": [architecture], **options}}


def _language_model_of(
    architecture: str,
    prefix: str,
    config_class: type[PretrainedConfig],
    options: Mapping[str, Any] = MappingProxyType({}),
    parameters: Mapping[str, Tensor] = MappingProxyType({}),
) -> Callable[[Path], None]:
    """Put a language model's checkpoint into a wrapper's.

    The weights stay under the language model's own names too, in the file that transformers reads. vLLM prefers the other one.

    Args:
        architecture: The language model's.
        prefix: What the wrapper puts before the weights' names.
        config_class: The wrapper's.
        options: For the wrapper's config.
        parameters: The wrapper's own that vLLM wants, even where it sees only text.
    """

    def finish(directory: Path) -> None:
        text_config = json.loads((directory / "config.json").read_text())
        inherited = {name: text_config[name] for name in ("architectures", "dtype")}
        config = shrunken(config_class, **options).to_dict()
        write_config(directory, config | inherited | {"text_config": text_config | {"architectures": [architecture]}})
        weights = load_file(directory / "model.safetensors")
        renamed = {prefix + name: weight for name, weight in weights.items()}
        save_file(renamed | dict(parameters), directory / "consolidated.safetensors")

    return finish


def _thinker_of(model_type: str) -> Callable[[Path], None]:
    """Make the checkpoint the thinker of a whole that also has a talker."""

    def finish(directory: Path) -> None:
        thinker = json.loads((directory / "config.json").read_text())
        whole = {"model_type": model_type, "architectures": thinker["architectures"], "dtype": thinker["dtype"]}
        write_config(directory, whole | {"thinker_config": thinker})
        weights = load_file(directory / "model.safetensors")
        renamed = {f"thinker.{name}": weight for name, weight in weights.items()}
        save_file(renamed, directory / "model.safetensors", metadata={"format": "pt"})

    return finish


def _mistral_format(**params: Any) -> Callable[[Path], None]:
    """Add what vLLM prefers to the checkpoint of a language model that transformers reads: Mistral's own files."""

    def finish(directory: Path) -> None:
        (directory / "params.json").write_text(json.dumps(MISTRAL_PARAMS | params))
        (directory / "consolidated.safetensors").write_bytes((directory / "model.safetensors").read_bytes())

    return finish


def _whole_whisper(directory: Path) -> None:
    """Put an encoder beside the decoder, which is all of it that runs on text alone."""
    config = WhisperConfig.from_pretrained(directory, is_encoder_decoder=True)
    model = WhisperForConditionalGeneration(config)
    randomize(model, seed=0)
    model.save_pretrained(directory)
    edit_config(directory, architectures=["WhisperForConditionalGeneration"])


COHERE2 = _language_model("Cohere2ForCausalLM", **SLIDING_AND_FULL, tie_word_embeddings=True)
LLAMA = _language_model("LlamaForCausalLM")
LLAVA = Recipe("LlavaForConditionalGeneration", LLAMA | {"image_token_index": PLACEHOLDER})
OMNI = Recipe(
    "Qwen2_5OmniThinkerForConditionalGeneration",
    {
        "text_config": MROPE,
        "vision_config": VIT | {"out_hidden_size": HIDDEN_SIZE, "fullatt_block_indexes": [1]},
        "audio_config": WHISPER_ENCODER | {"output_dim": HIDDEN_SIZE},
        "vision_start_token_id": PLACEHOLDER,
    },
    finish=_thinker_of("qwen2_5_omni"),
)

RECIPES: dict[str, Recipe] = {
    "AriaForConditionalGeneration": Recipe(
        "AriaForConditionalGeneration",
        {"text_config": {"moe_num_experts": 4, "moe_topk": 4}, "image_token_index": PLACEHOLDER},
    ),
    "AyaVisionForConditionalGeneration": Recipe("AyaVisionForConditionalGeneration", COHERE2),
    # In transformers the whole insists on an image.
    "Blip2ForConditionalGeneration": Recipe(
        "OPTForCausalLM",
        {"word_embed_proj_dim": HIDDEN_SIZE, "tie_word_embeddings": True},
        finish=_language_model_of(
            "OPTForCausalLM", "language_model.", Blip2Config, parameters={"query_tokens": torch.zeros(1, 32, HIDDEN_SIZE)}
        ),
    ),
    "ChameleonForConditionalGeneration": Recipe(
        "ChameleonForConditionalGeneration",
        {
            "vq_config": {"embed_dim": 32, "num_embeddings": 16, "latent_channels": 32, "base_channels": 32},
            "vocabulary_map": {"<image>": PLACEHOLDER, "IMGIMGAZ": 510, "IMGIMGBZ": 509},
        },
    ),
    "Cohere2VisionForConditionalGeneration": Recipe("Cohere2VisionForConditionalGeneration", COHERE2),
    "FuyuForCausalLM": Recipe("FuyuForCausalLM"),
    "Gemma3ForConditionalGeneration": Recipe(
        "Gemma3ForConditionalGeneration", {"text_config": {**SLIDING_AND_FULL, "tie_word_embeddings": True}}
    ),
    # The whole cannot be made without timm, in vLLM either; the language model can.
    "Gemma3nForConditionalGeneration": Recipe(
        "Gemma3nForCausalLM",
        GEMMA3N,
        finish=_language_model_of("Gemma3nForCausalLM", "model.language_", Gemma3nConfig),
    ),
    "Glm4vForConditionalGeneration": Recipe(
        "Glm4vForConditionalGeneration",
        {
            "text_config": MROPE_HALF | {"attention_bias": True},
            "vision_config": VIT | {"out_hidden_size": HIDDEN_SIZE},
        },
    ),
    "Glm4vMoeForConditionalGeneration": Recipe(
        "Glm4vMoeForConditionalGeneration",
        {
            "text_config": MROPE_HALF | {"head_dim": 32, "use_qk_norm": False},
            "vision_config": VIT | {"out_hidden_size": HIDDEN_SIZE},
        },
    ),
    "GraniteSpeechForConditionalGeneration": Recipe(
        "GraniteSpeechForConditionalGeneration",
        {
            **_language_model(
                "GraniteForCausalLM",
                embedding_multiplier=12.0,
                residual_multiplier=0.22,
                attention_multiplier=1 / 32,
                logits_scaling=8.0,
            ),
            "encoder_config": {"hidden_dim": 128, "num_heads": 4, "dim_head": 32, "context_size": 32, "max_pos_emb": 64},
            "projector_config": {"model_type": "blip_2_qformer", "encoder_hidden_size": 128},
            "has_lora_adapter": False,
        },
    ),
    "Idefics3ForConditionalGeneration": Recipe("Idefics3ForConditionalGeneration", LLAMA | SHORT_ENCODER),
    "InternVLForConditionalGeneration": Recipe("InternVLForConditionalGeneration", _language_model("Qwen2ForCausalLM")),
    # transformers writes a model_type that it does not read, and always has the norm that vLLM asks the config for.
    "Lfm2VlForConditionalGeneration": Recipe(
        "Lfm2VlForConditionalGeneration",
        _language_model(
            "Lfm2ForCausalLM",
            layer_types=["conv", "full_attention"] * 2,
            block_auto_adjust_ff_dim=False,
            block_dim=HIDDEN_SIZE,
            block_ff_dim=256,
            conv_dim=HIDDEN_SIZE,
        ),
        {"model_type": "lfm2_vl", "projector_use_layernorm": True},
    ),
    "LightOnOCRForConditionalGeneration": Recipe(
        "Mistral3ForConditionalGeneration",
        _language_model("Qwen3ForCausalLM", model_type="qwen3") | {"image_token_index": PLACEHOLDER},
    ),
    "Llama4ForConditionalGeneration": Recipe(
        "Llama4ForConditionalGeneration",
        {
            **_language_model("Llama4ForCausalLM", **LLAMA4),
            "vision_config": dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 128),
        },
    ),
    "LlavaForConditionalGeneration": LLAVA,
    "LlavaNextForConditionalGeneration": Recipe("LlavaNextForConditionalGeneration", LLAMA),
    "LlavaNextVideoForConditionalGeneration": Recipe("LlavaNextVideoForConditionalGeneration", LLAMA),
    "LlavaOnevisionForConditionalGeneration": Recipe(
        "LlavaOnevisionForConditionalGeneration", _language_model("Qwen2ForCausalLM")
    ),
    "MantisForConditionalGeneration": LLAVA,
    "Mistral3ForConditionalGeneration": Recipe(
        "Mistral3ForConditionalGeneration",
        _language_model("MistralForCausalLM", sliding_window=None) | {"image_token_index": PLACEHOLDER},
    ),
    # In transformers every token of a prompt sees all others, later ones too; in vLLM only earlier ones, as in plain Gemma.
    "PaliGemmaForConditionalGeneration": Recipe(
        "GemmaForCausalLM",
        {"tie_word_embeddings": True},
        finish=_language_model_of("GemmaForCausalLM", "language_model.", PaliGemmaConfig, {"projection_dim": HIDDEN_SIZE}),
    ),
    "PixtralForConditionalGeneration": Recipe(
        "MistralForCausalLM",
        {"sliding_window": None},
        finish=_mistral_format(
            vision_encoder={
                "hidden_size": 128,
                "num_channels": 3,
                "image_size": 64,
                "patch_size": 16,
                "intermediate_size": 256,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "rope_theta": 10000.0,
                "image_token_id": PLACEHOLDER,
            }
        ),
    ),
    "Qwen2AudioForConditionalGeneration": Recipe(
        "Qwen2AudioForConditionalGeneration",
        _language_model("Qwen2ForCausalLM") | {"audio_config": WHISPER_ENCODER},
    ),
    "Qwen2VLForConditionalGeneration": Recipe(
        "Qwen2VLForConditionalGeneration", {"text_config": MROPE, "vision_config": VIT | {"embed_dim": HIDDEN_SIZE}}
    ),
    "Qwen2_5OmniForConditionalGeneration": OMNI,
    "Qwen2_5OmniModel": OMNI,
    "Qwen2_5_VLForConditionalGeneration": Recipe(
        "Qwen2_5_VLForConditionalGeneration",
        {"text_config": MROPE, "vision_config": VIT | {"out_hidden_size": HIDDEN_SIZE, "fullatt_block_indexes": [1]}},
    ),
    "Qwen3OmniMoeForConditionalGeneration": Recipe(
        "Qwen3OmniMoeThinkerForConditionalGeneration",
        {
            "text_config": MROPE_INTERLEAVED,
            "vision_config": DEEPSTACK_VIT,
            "audio_config": WHISPER_ENCODER | {"output_dim": HIDDEN_SIZE, "downsample_hidden_size": 32},
            "vision_start_token_id": PLACEHOLDER,
        },
        finish=_thinker_of("qwen3_omni_moe"),
    ),
    "Qwen3VLForConditionalGeneration": Recipe(
        "Qwen3VLForConditionalGeneration", {"text_config": MROPE_INTERLEAVED, "vision_config": DEEPSTACK_VIT}
    ),
    "Qwen3VLMoeForConditionalGeneration": Recipe(
        "Qwen3VLMoeForConditionalGeneration", {"text_config": MROPE_INTERLEAVED, "vision_config": DEEPSTACK_VIT}
    ),
    "SmolVLMForConditionalGeneration": Recipe("SmolVLMForConditionalGeneration", LLAMA | SHORT_ENCODER),
    "VoxtralForConditionalGeneration": Recipe(
        "MistralForCausalLM",
        {"sliding_window": None},
        finish=_mistral_format(
            multimodal={
                "whisper_model_args": {
                    "encoder_args": {
                        "audio_encoding_args": dict(num_mel_bins=16, window_size=400, sampling_rate=16000, hop_length=160),
                        "dim": 128,
                        "n_layers": 2,
                        "head_dim": 32,
                        "hidden_dim": 256,
                        "n_heads": 4,
                        "vocab_size": VOCABULARY_SIZE,
                        "max_source_positions": 64,
                    },
                    "downsample_args": {"downsample_factor": 4},
                }
            }
        ),
    ),
    # Its decoder needs what its encoder makes of audio: there is nothing to extract from text.
    "WhisperForConditionalGeneration": Recipe(
        "WhisperForCausalLM",
        WHISPER_ENCODER
        | {"encoder_layers": LAYERS, "decoder_layers": LAYERS, "decoder_attention_heads": 4, "decoder_ffn_dim": 256},
        {"is_encoder_decoder": True},
        finish=_whole_whisper,
    ),
}
