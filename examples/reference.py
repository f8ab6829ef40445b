"""The reference for every state: Hugging Face in float32, computed from the checkpoint without vLLM or speculators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM


class Reference:
    """Hidden states after each decoder layer, before the final norm, one prompt at a time.

    Args:
        directory: A text-only checkpoint.
        dtype: float32 is the reference; the model's own dtype shows how far rounding alone leads away from it.
        device: Where to compute.
    """

    def __init__(self, directory: Path, dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        self.device = device
        self.model = AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, attn_implementation="eager").eval()
        self.model.to(device)

    @torch.no_grad()
    def states(self, prompt: Sequence[int], layer_ids: Sequence[int]) -> list[torch.Tensor]:
        """States `[tokens, hidden_size]` in float32, one per layer of `layer_ids`."""
        found: dict[int, torch.Tensor] = {}
        layers = self.model.model.layers
        # Hooks, because output_hidden_states has the last layer's state only after the final norm.
        taps = [
            layers[index].register_forward_hook(
                lambda module, args, output, index=index: found.__setitem__(
                    index, (output[0] if isinstance(output, tuple) else output)[0].float().cpu()
                )
            )
            for index in layer_ids
        ]
        try:
            self.model(input_ids=torch.tensor([list(prompt)], device=self.device), use_cache=False)
        finally:
            for tap in taps:
                tap.remove()
        return [found[index] for index in layer_ids]


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """The largest error of a token's state, relative to the norm of that state in the reference; infinite if it is no number.

    Args:
        found: `[tokens, hidden_size]`, any dtype.
        expected: The same shape, float32.
    """
    error = (found.float() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return float(error.nan_to_num(nan=torch.inf, posinf=torch.inf).max())
