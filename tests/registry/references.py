"""What the states of a tiny model have to be, computed without this package and without speculators."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from vllm.model_executor.layers.rotary_embedding import RotaryEmbedding

from tests.registry.tiny import HIDDEN_SIZE, LAYERS

Prompts = Sequence[Sequence[int]]
# By prompt, then by layer: [tokens, hidden_size] in float32.
States = list[list[Tensor]]


@torch.no_grad()
def transformers_states(model: PreTrainedModel, prompts: Prompts) -> States:
    """What Hugging Face's decoder layers return.

    Args:
        model: In float32, with the weights that vLLM loads.
        prompts: Token ids.
    """
    layers = _decoder_layers(model.get_decoder() if hasattr(model, "get_decoder") else model)
    found: dict[int, Tensor] = {}

    def tap(index: int) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            found[index] = (output[0] if isinstance(output, tuple) else output).reshape(-1, HIDDEN_SIZE).float().cpu()

        return keep

    taps = [layer.register_forward_hook(tap(index)) for index, layer in enumerate(layers)]
    states = []
    for prompt in prompts:
        found.clear()
        ids = torch.tensor([list(prompt)], device=model.device)
        model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False)
        states.append([found[index] for index in range(len(layers))])
    for each in taps:
        each.remove()
    return states


def _decoder_layers(language_model: nn.Module) -> nn.ModuleList:
    """Every tiny model has as many of them."""
    return next(m for m in language_model.modules() if isinstance(m, nn.ModuleList) and len(m) == LAYERS)


class PlainVllm:
    """vLLM by itself, in this process, for architectures that Hugging Face lacks, and to see what vLLM can run at all.

    Args:
        directory: The checkpoint.
        dtype: What to run in.
        options: More arguments of `vllm.LLM`.
    """

    def __init__(self, directory: Path, dtype: torch.dtype, **options: Any) -> None:
        from vllm import LLM

        self.llm = LLM(
            str(directory),
            dtype=dtype,
            runner="generate",
            enforce_eager=True,
            enable_prefix_caching=False,
            trust_remote_code=True,
            max_model_len=256,
            max_num_seqs=4,
            max_num_batched_tokens=1024,
            # Given, not measured: other processes may use the same GPU meanwhile.
            kv_cache_memory_bytes=1 << 30,
            gpu_memory_utilization=0.1,
            limit_mm_per_prompt=dict.fromkeys(("image", "video", "audio", "vision_chunk"), 0),
            **options,
        )
        self.model: nn.Module = self.llm.llm_engine.model_executor.driver_worker.get_model()

    def prefill(self, prompts: Prompts) -> None:
        from vllm import SamplingParams, TokensPrompt

        tokens = [TokensPrompt(prompt_token_ids=list(prompt)) for prompt in prompts]
        self.llm.generate(tokens, SamplingParams(max_tokens=1, temperature=0), use_tqdm=False)

    def states(self, prompts: Prompts) -> States:
        """The state after layer k is what the final norm is given by a model that ends after layer k."""
        for module in self.model.modules():
            if isinstance(module, RotaryEmbedding):
                # The CPU kernel of vLLM 0.16.0 misreads the interleaved style.
                module._forward_method = module.forward_native
        layers = _decoder_layers(getattr(self.model, "get_language_model", lambda: self.model)())
        states: States = [[] for _ in prompts]
        while len(layers):
            for prompt, rows in zip(prompts, states, strict=True):
                rows.insert(0, self._final_norm_input(layers, prompt))
            self._drop_last(layers)
        return states

    def _drop_last(self, layers: nn.ModuleList) -> None:
        del layers[-1]
        for module in self.model.modules():
            if hasattr(module, "end_layer") and any(child is layers for child in module.children()):
                module.end_layer = len(layers)

    def _final_norm_input(self, layers: nn.ModuleList, prompt: Sequence[int]) -> Tensor:
        found: list[Tensor] = []
        inside = {module for layer in layers for module in layer.modules()}
        after_last = False

        def last_has_run(module: nn.Module, args: Any, output: Any) -> None:
            nonlocal after_last
            after_last = not found

        def next_module(module: nn.Module, args: Any, kwargs: Any) -> None:
            nonlocal after_last
            if after_last and module not in inside:
                after_last = False
                found.append(_stream_read_by(module, args, kwargs)[: len(prompt)].float().cpu())

        def model_has_run(module: nn.Module, args: Any, output: Any) -> None:
            # Some models leave their final norm to the computation of logits, which sees the last token only.
            nonlocal after_last
            if after_last:
                after_last = False
                found.append(output[: len(prompt)].float().cpu())

        hooks = [layers[-1].register_forward_hook(last_has_run), self.model.register_forward_hook(model_has_run)]
        hooks += [
            module.register_forward_pre_hook(next_module, with_kwargs=True)
            for module in self.model.modules()
            if module not in inside
        ]
        self.prefill([prompt])
        for hook in hooks:
            hook.remove()
        return found[0]


def _stream_read_by(norm: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    """What a final norm normalises: its input, plus the residual if its output depends on it."""
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    hidden = inputs[0].clone()
    if len(inputs) == 1:
        return hidden
    residual = inputs[1].clone()

    def output(second: Tensor) -> Tensor:
        result = norm.forward(hidden.clone(), second)
        return result[0] if isinstance(result, tuple) else result

    read = not torch.equal(output(residual.clone()), output(torch.zeros_like(residual)))
    return hidden + residual if read else hidden
