"""How the tiny checkpoint of one architecture is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.registry.tiny import edit_config, save_model, save_remote_config, shrunken

# Sizes of latent attention for which its GPU kernels are made: those of DeepSeek-V3.
LATENT_ATTENTION = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


@dataclass(frozen=True)
class Recipe:
    """One architecture's checkpoint.

    Attributes:
        model: The class in transformers that it is built with, and that is the reference; empty for one that transformers
            lacks.
        options: For the config class, or the whole config where transformers has none.
        saved: What vLLM needs in the saved config beside, or in place of, what transformers writes.
        finish: Last touches to the files, such as a processor's config.
        dtype: What a CPU runs it in: float32, where the kernels have it, since a right state then agrees to six digits.
        environment: Environment variables that vLLM needs for this architecture.
    """

    model: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    saved: Mapping[str, Any] = field(default_factory=dict)
    finish: Callable[[Path], None] = lambda directory: None
    dtype: torch.dtype = torch.float32
    environment: Mapping[str, str] = field(default_factory=dict)

    def make(self, architecture: str, directory: Path, dtype: torch.dtype) -> None:
        """Write the checkpoint, with weights of `dtype`."""
        if self.model:
            model_class = getattr(transformers, self.model)
            save_model(model_class, shrunken(model_class.config_class, **self.options), dtype, directory)
            edit_config(directory, architectures=[architecture], **self.saved)
        else:
            save_remote_config(directory, architecture, {**self.options, "dtype": str(dtype).removeprefix("torch.")})
        self.finish(directory)
