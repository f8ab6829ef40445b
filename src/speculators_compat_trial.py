"""What `speculators-compat preflight` has vLLM's workers load instead of a checkpoint: random weights of a useful size.

It is not part of the package, because importing the package activates it, and whether workers are activated is one of the
things that a preflight tries.

vLLM's own `dummy` format draws from ±0.001, norms included: layers would hardly change the residual stream, and wrong states
would not show.
"""

from __future__ import annotations

from typing import Any

import torch
from speculators.data_generation.custom_worker import HiddenStatesWorkerExtension
from vllm.model_executor.model_loader import register_model_loader
from vllm.model_executor.model_loader.base_loader import BaseModelLoader

LOAD_FORMAT = "speculators_compat_trial"
EXTENSION = "speculators_compat_trial.TrialExtension"

# Of what a weight is stored as, the standard deviation when every code is equally likely: eight 4-bit codes in an int32, one
# in an int8, two 4-bit floats in a uint8. Floating points of 8 bits are drawn from a normal distribution.
SPREAD = {torch.int32: 4.6, torch.int8: 73.0, torch.uint8: 3.0}


@register_model_loader(LOAD_FORMAT)
class TrialLoader(BaseModelLoader):  # type: ignore[misc]
    """Every process that loads with the same config gets the same weights."""

    def download_model(self, model_config: Any) -> None:
        pass

    def load_weights(self, model: torch.nn.Module, model_config: Any) -> None:
        width = model_config.get_hidden_size()
        for module_name, module in model.named_modules():
            parameters = dict(module.named_parameters(recurse=False))
            spread = max((SPREAD.get(parameter.dtype, 1.0) for parameter in parameters.values()), default=1.0)
            for name, parameter in parameters.items():
                generator = torch.Generator().manual_seed(sum(f"{module_name}.{name}".encode()))
                _fill(name, parameter.data, 0.7 / width**0.5 / spread, generator)


class TrialExtension(HiddenStatesWorkerExtension):  # type: ignore[misc]
    """Upstream's worker extension; by its path, a worker that is spawned imports this module, and has the loader."""

    model_runner: Any

    def _trial_held_requests(self) -> int:
        """How many requests the worker holds."""
        runner = self.model_runner
        return len(runner.requests if hasattr(runner, "requests") else runner.req_states.req_id_to_index)

    def _trial_tower_parameters(self) -> int:
        """How many parameters are neither the language model's nor its head's."""
        model = self.model_runner.get_model()
        if not hasattr(model, "get_language_model"):
            return 0
        language_model = {id(parameter) for parameter in model.get_language_model().parameters()}
        return sum(
            parameter.numel()
            for name, parameter in model.named_parameters()
            if id(parameter) not in language_model and "lm_head" not in name
        )


def _fill(name: str, parameter: torch.Tensor, scale: float, generator: torch.Generator) -> None:
    shape = parameter.shape
    if parameter.dtype in SPREAD and "g_idx" not in name and parameter.ndim > 1:
        bounds = torch.iinfo(parameter.dtype)
        values = torch.randint(bounds.min, bounds.max, shape, generator=generator)
    elif not parameter.is_floating_point():
        return
    elif "input" in name and "scale" in name:
        values = torch.ones(shape)
    elif "scale" in name:
        values = (0.5 + torch.rand(shape, generator=generator)) * scale
    elif parameter.ndim > 1:
        coded = parameter.element_size() == 1
        values = torch.randn(shape, generator=generator) * (1.0 if coded else scale)
    elif "norm" in name or "ln" in name or "weight" in name:
        values = torch.rand(shape, generator=generator) * 0.6 + 0.7
    else:
        values = torch.randn(shape, generator=generator) * 0.02
    parameter.copy_(values.to(parameter.dtype))
