"""Hugging Face: a forward pass with `output_hidden_states`, the layers that are wanted copied to the CPU."""

from __future__ import annotations

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from benchmarks.peers import Peer, States
from benchmarks.peers.in_worker import peak_gpu_bytes
from benchmarks.settings import Prompts, Settings


class Forward(Peer):
    def __init__(self, settings: Settings) -> None:
        self.layers, self.tokens_at_once = settings.layers, settings.max_num_batched_tokens
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        if settings.random_weights:
            with torch.device(self.device):
                config = AutoConfig.from_pretrained(settings.model)
                whole = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        else:
            whole = AutoModelForCausalLM.from_pretrained(settings.model, dtype=torch.bfloat16)
        self.model = whole.model.to(self.device).eval()  # without the head

    @torch.inference_mode()
    def run(self, prompts: Prompts) -> States:
        at_once = max(1, self.tokens_at_once // len(prompts[0]))
        states: list[list[torch.Tensor]] = []
        for first in range(0, len(prompts), at_once):
            ids = torch.tensor(prompts[first : first + at_once], device=self.device)
            # After the last layer come the final norm's, not its own, so that one is tapped.
            last: list[torch.Tensor] = []
            tap = self.model.layers[-1].register_forward_hook(
                lambda layer, args, output, last=last: last.append(_stream(output))
            )
            hidden = self.model(ids, use_cache=False, output_hidden_states=True).hidden_states
            tap.remove()
            every = [*hidden[1:-1], *last]
            wanted = [every[layer].cpu() for layer in self.layers]
            states += [[layer[row] for layer in wanted] for row in range(len(ids))]
        return states

    def peak_gpu_bytes(self) -> int | None:
        return peak_gpu_bytes()


def _stream(output: object) -> torch.Tensor:
    stream = output[0] if isinstance(output, tuple) else output
    assert isinstance(stream, torch.Tensor)
    return stream


def start(settings: Settings) -> Peer:
    return Forward(settings)
