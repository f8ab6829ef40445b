"""Tiny configs of big architectures, and checkpoints with random weights made from them."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tiny_checkpoints import make_tokenizer
from torch import nn
from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig, PreTrainedModel

LAYERS = 4
HIDDEN_SIZE = 128
VOCABULARY_SIZE = 512

# What the parameters of config classes are called, in all the dialects of the registry, and how small they can be made.
SIZES: dict[str, Any] = {
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), LAYERS),
    **dict.fromkeys(("hidden_size", "n_embd", "d_model"), HIDDEN_SIZE),
    **dict.fromkeys(("intermediate_size", "ffn_hidden_size", "ffn_dim", "n_inner"), 256),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads"), 2),
    **dict.fromkeys(("head_dim", "attention_head_dim"), 32),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 64),
    # All experts are active: with random weights, routing would flip on rounding errors.
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk"), 4),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts"), 1),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_sequence_length"), 512),
    "vocab_size": VOCABULARY_SIZE,
    "bos_token_id": 256,
    "eos_token_id": 258,
    "pad_token_id": 258,
    "tie_word_embeddings": False,
}

# The entries of a wrapper's config that hold the config of its language model.
LANGUAGE_MODELS = ("thinker_config", "text_config", "llm_config", "language_config")

REMOTE_CONFIG = """
from transformers import CONFIG_MAPPING, PretrainedConfig


class Nested(PretrainedConfig):
    # Takes any entry; those that name a model_type become configs.
    def __init__(self, **entries):
        super().__init__(**{name: _config(entry) for name, entry in entries.items()})


def _config(entry):
    if not (isinstance(entry, dict) and "model_type" in entry):
        return entry
    model_type = entry["model_type"]
    return CONFIG_MAPPING[model_type](**entry) if model_type in CONFIG_MAPPING else Nested(**entry)


class CONFIG_CLASS(Nested):
    model_type = "MODEL_TYPE"
"""


def shrunken(config_class: type[PretrainedConfig], **options: Any) -> PretrainedConfig:
    """A config of `config_class` in which every size that it names is small, and in the configs that it nests.

    Args:
        config_class: A config class of transformers or vLLM.
        options: What this architecture needs otherwise; for a nested config a dict, in which `model_type` picks its class
            where there is a choice.
    """
    known = {
        name
        for base in config_class.__mro__
        for name in inspect.signature(base.__init__).parameters  # type: ignore[misc]
    }
    known |= set(config_class.attribute_map)
    for name, nested_class in config_class.sub_configs.items():
        if isinstance(options.get(name), PretrainedConfig):
            continue
        nested = dict(options.get(name, {}))
        model_type = nested.pop("model_type", None)
        if nested_class is AutoConfig:
            nested_class = CONFIG_MAPPING[model_type] if model_type else type(getattr(config_class(), name))
        options[name] = shrunken(nested_class, **nested).to_dict()
    return config_class(**{name: size for name, size in SIZES.items() if name in known} | options)


def save_model(model_class: type[PreTrainedModel], config: PretrainedConfig, dtype: torch.dtype, directory: Path) -> None:
    """Write a checkpoint of `model_class` with random weights, and a tokenizer."""
    torch.manual_seed(0)
    model = model_class(config).eval()
    randomize(model, seed=0)
    model.to(dtype).save_pretrained(directory, safe_serialization=True)
    make_tokenizer().save_pretrained(directory)


def save_remote_config(directory: Path, architecture: str, attributes: Mapping[str, Any]) -> None:
    """Write a checkpoint without weights, whose config is remote code, as models are published that transformers lacks.

    Args:
        directory: Where to write.
        architecture: Name in vLLM's registry.
        attributes: The config's own; sizes that it, or the config of its language model, does not name are `SIZES`' where they
            have the usual names. `config_class` is what the remote code calls its class.
    """
    config = _with_usual_sizes(attributes)
    config_class = config.pop("config_class", "TinyConfig")
    model_type = config.setdefault("model_type", f"tiny_{architecture.lower()}")
    config |= {"architectures": [architecture], "auto_map": {"AutoConfig": f"configuration_tiny.{config_class}"}}
    write_config(directory, config)
    remote_code = REMOTE_CONFIG.replace("CONFIG_CLASS", config_class).replace("MODEL_TYPE", model_type)
    (directory / "configuration_tiny.py").write_text(remote_code)
    make_tokenizer().save_pretrained(directory)


def _with_usual_sizes(config: Mapping[str, Any]) -> dict[str, Any]:
    for name in LANGUAGE_MODELS:
        if name in config:
            return {**config, name: _with_usual_sizes(config[name])}
    usual = ("num_hidden_layers", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    usual += ("max_position_embeddings", "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings")
    return {name: SIZES[name] for name in usual} | dict(config)


def write_config(directory: Path, config: Mapping[str, Any]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))


def edit_config(directory: Path, **changes: Any) -> None:
    """Change entries of a checkpoint's config as it is on disk."""
    path = directory / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes, indent=2))


@torch.no_grad()
def randomize(model: nn.Module, seed: int) -> None:
    """Give every parameter random values of a size with which all layers change the stream visibly."""
    for name, parameter in sorted(model.named_parameters()):
        if not parameter.is_floating_point():
            continue
        generator = torch.Generator().manual_seed(seed + sum(name.encode()))
        if parameter.ndim > 1:
            values = torch.randn(parameter.shape, generator=generator) * (0.68 / HIDDEN_SIZE**0.5)
        elif "bias" not in name and ("norm" in name or "ln" in name):
            values = torch.rand(parameter.shape, generator=generator) * 0.6 + 0.7
        else:
            values = torch.randn(parameter.shape, generator=generator) * 0.02
        parameter.copy_(values.to(parameter))
