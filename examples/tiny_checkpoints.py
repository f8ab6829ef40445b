"""Tiny checkpoints of real architectures, with random weights, a byte-level tokenizer and a chat template.

Nothing is downloaded. Each has the config and the weight names of its big sister, so that Hugging Face and vLLM load it with
the same code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoModelForCausalLM,
    CohereConfig,
    DeepseekV3Config,
    GptOssConfig,
    LlamaConfig,
    Olmo2Config,
    PretrainedConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

VOCABULARY_SIZE = 512
LAYERS = 5
SPECIAL_TOKENS = ("<|start|>", "<|message|>", "<|end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}<|message|>"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }}<|end|>{% endgeneration %}"
    "{% else %}{{ message['content'] }}<|end|>{% endif %}{% endfor %}"
)
COMMON = dict(
    vocab_size=VOCABULARY_SIZE,
    hidden_size=128,
    intermediate_size=256,
    num_hidden_layers=LAYERS,
    max_position_embeddings=16384,
    bos_token_id=256,
    eos_token_id=258,
    pad_token_id=258,
    tie_word_embeddings=False,
)


@dataclass(frozen=True)
class Recipe:
    """How to make one checkpoint.

    Attributes:
        config: Makes the config that Hugging Face builds the language model from.
        finish: Turns the saved text-only checkpoint into the published form, where that differs.
    """

    config: Callable[[], PretrainedConfig]
    finish: Callable[[Path], None] = lambda directory: None


def make(name: str, directory: Path) -> Path:
    """Write the checkpoint `name` into `directory`, unless it is there already.

    Args:
        name: A key of `RECIPES`.
        directory: Where to write; a text-only twin for the reference goes beside it, as `<directory>-text`.

    Returns:
        `directory`.
    """
    if not (directory / "ready").exists():
        recipe = RECIPES[name]
        _save_language_model(recipe.config(), directory)
        shutil.copytree(directory, text_twin(directory), dirs_exist_ok=True)
        recipe.finish(directory)
        (directory / "ready").touch()
    return directory


def text_twin(directory: Path) -> Path:
    """The same language model as plain Hugging Face, without wrapper or remote code: what the reference loads."""
    return directory.with_name(directory.name + "-text")


def _save_language_model(config: PretrainedConfig, directory: Path) -> None:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, std=0.68 / config.hidden_size**0.5)
            elif "norm" in name:
                torch.nn.init.uniform_(parameter, 0.7, 1.3)
            else:
                torch.nn.init.normal_(parameter, std=0.02)
    model.to(torch.bfloat16).save_pretrained(directory)
    make_tokenizer().save_pretrained(directory)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """A tokenizer with one token per byte (ids 0 to 255), and the chat template's markers (256 to 258)."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<|start|>", eos_token="<|end|>", chat_template=CHAT_TEMPLATE
    )


def _llama() -> PretrainedConfig:
    return LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **COMMON)


def _qwen2() -> PretrainedConfig:
    return Qwen2Config(num_attention_heads=4, num_key_value_heads=2, **COMMON)


def _qwen3() -> PretrainedConfig:
    return Qwen3Config(num_attention_heads=4, num_key_value_heads=2, head_dim=32, **COMMON)


def _cohere() -> PretrainedConfig:
    """Attention and MLP side by side; vLLM's layer returns the stream beside a residual that nobody reads."""
    return CohereConfig(num_attention_heads=4, num_key_value_heads=2, **COMMON | dict(tie_word_embeddings=True))


def _olmo2() -> PretrainedConfig:
    """Norms after attention and MLP; vLLM's layer returns the stream alone."""
    return Olmo2Config(num_attention_heads=4, num_key_value_heads=4, **COMMON)


def _gpt_oss() -> PretrainedConfig:
    # All experts are active: with random weights, routing would flip between precisions.
    return GptOssConfig(
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=4,
        num_experts_per_tok=4,
        sliding_window=32,
        layer_types=["sliding_attention" if i % 2 == 0 else "full_attention" for i in range(LAYERS)],
        **COMMON,
    )


def _llama_128() -> PretrainedConfig:
    """Heads of 128, which CUDA kernels take."""
    return LlamaConfig(num_attention_heads=8, num_key_value_heads=2, head_dim=128, **COMMON | dict(hidden_size=512))


def _deepseek_v3_mla() -> PretrainedConfig:
    """The head sizes that MLA kernels take: those of DeepSeek-V3 itself."""
    config = _deepseek_v3()
    config.update(
        dict(
            hidden_size=512,
            num_attention_heads=16,
            num_key_value_heads=16,
            moe_intermediate_size=256,
            n_routed_experts=8,
            num_experts_per_tok=8,
            kv_lora_rank=512,
            q_lora_rank=256,
            qk_rope_head_dim=64,
            qk_nope_head_dim=128,
            v_head_dim=128,
        )
    )
    config.qk_head_dim, config.head_dim = 192, 64
    return config


def _deepseek_v3() -> PretrainedConfig:
    config = DeepseekV3Config(
        num_attention_heads=4,
        num_key_value_heads=4,
        moe_intermediate_size=128,
        n_routed_experts=4,
        num_experts_per_tok=4,
        n_shared_experts=1,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        routed_scaling_factor=1.5,
        kv_lora_rank=32,
        q_lora_rank=48,
        qk_rope_head_dim=32,
        qk_nope_head_dim=32,
        v_head_dim=32,
        **COMMON,
    )
    # Published configs have these two, and vLLM needs them; transformers leaves them out.
    config.topk_method, config.scoring_func = "noaux_tc", "sigmoid"
    return config


KIMI_REMOTE_CODE = {
    "configuration_tiny_kimi.py": """
from transformers import DeepseekV3Config, PretrainedConfig


class TinyKimiConfig(PretrainedConfig):
    model_type = "kimi_k25"

    def __init__(self, text_config=None, vision_config=None, **kwargs):
        self.text_config = DeepseekV3Config(**(text_config or {}))
        self.vision_config = PretrainedConfig(**(vision_config or {}))
        super().__init__(**kwargs)
""",
    "tokenization_tiny_kimi.py": '''
from transformers import PreTrainedTokenizerFast


class TinyKimiTokenizer(PreTrainedTokenizerFast):
    """Remote code in form only: what matters is that loading it needs trust_remote_code."""
''',
    "image_processing_tiny_kimi.py": """
from transformers import BaseImageProcessor


class TinyKimiImageProcessor(BaseImageProcessor):
    num_frames_per_chunk = 4

    def media_tokens_calculator(self, media):
        return 1

    def split_video_chunks(self, video):
        return [video]
""",
}


def _wrap_as_kimi(directory: Path) -> None:
    """Put the language model under the multimodal wrapper of Kimi-K2.5, with remote code beside it."""
    from safetensors.torch import load_file, save_file

    for name, source in KIMI_REMOTE_CODE.items():
        (directory / name).write_text(source.lstrip())
    text_config = _read(directory / "config.json")
    _write(
        directory / "config.json",
        {
            "architectures": ["KimiK25ForConditionalGeneration"],
            "model_type": "kimi_k25",
            "auto_map": {"AutoConfig": "configuration_tiny_kimi.TinyKimiConfig"},
            "dtype": text_config["dtype"],
            "text_config": text_config,
            "vision_config": {
                "num_attention_heads": 2,
                "num_hidden_layers": 1,
                "hidden_size": 32,
                "intermediate_size": 64,
            },
            "media_placeholder_token_id": 300,
            **{key: COMMON[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")},
        },
    )
    _write(
        directory / "preprocessor_config.json",
        {
            "image_processor_type": "TinyKimiImageProcessor",
            "auto_map": {"AutoImageProcessor": "image_processing_tiny_kimi.TinyKimiImageProcessor"},
            "media_proc_cfg": {
                "patch_size": 14,
                "merge_kernel_size": 2,
                "temporal_merge_kernel_size": 4,
                "image_mean": [0.5, 0.5, 0.5],
                "image_std": [0.5, 0.5, 0.5],
            },
        },
    )
    tokenizer_config = _read(directory / "tokenizer_config.json")
    tokenizer_config["tokenizer_class"] = "TinyKimiTokenizer"
    tokenizer_config["auto_map"] = {"AutoTokenizer": [None, "tokenization_tiny_kimi.TinyKimiTokenizer"]}
    _write(directory / "tokenizer_config.json", tokenizer_config)
    weights = load_file(directory / "model.safetensors")
    save_file(
        {f"language_model.{name}": tensor for name, tensor in weights.items()},
        directory / "model.safetensors",
        metadata={"format": "pt"},
    )


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _write(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2))


RECIPES = {
    "llama": Recipe(_llama),
    "llama_128": Recipe(_llama_128),
    "deepseek_v3_mla": Recipe(_deepseek_v3_mla),
    "qwen2": Recipe(_qwen2),
    "qwen3": Recipe(_qwen3),
    "gpt_oss": Recipe(_gpt_oss),
    "cohere": Recipe(_cohere),
    "olmo2": Recipe(_olmo2),
    "deepseek_v3": Recipe(_deepseek_v3),
    "kimi_k25": Recipe(_deepseek_v3, _wrap_as_kimi),
}
