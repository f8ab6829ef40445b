"""A model loader that gives vLLM's parameters random values of useful size, for architectures that have no checkpoint here.

vLLM's own `dummy` format draws from ±0.001, norms included, so that layers would hardly change the stream, and a wrong one
would not show.
"""

from __future__ import annotations

import torch
from speculators.data_generation.custom_worker import HiddenStatesWorkerExtension
from vllm.config import ModelConfig
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

from tests.registry.tiny import randomize

LOAD_FORMAT = "tiny_random"


@register_model_loader(LOAD_FORMAT)
class RandomWeightsLoader(BaseModelLoader):
    """Every process that loads with the same config gets the same weights."""

    def download_model(self, model_config: ModelConfig) -> None:
        pass

    def load_weights(self, model: torch.nn.Module, model_config: ModelConfig) -> None:
        randomize(model, seed=0)


class RandomWeightsExtension(HiddenStatesWorkerExtension):  # type: ignore[misc]
    """Upstream's worker extension; with its path, a worker that is spawned imports this module, and has the loader."""
