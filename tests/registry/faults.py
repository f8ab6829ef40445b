"""What the sweep is broken with, to see that it says so."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import speculators_compat
from speculators_compat.worker import capture
from speculators_compat.worker.residual_stream import StreamForm, read_stream


@dataclass(frozen=True)
class Fault:
    """What is broken, and what has to be said of which architecture then.

    Attributes:
        name: What is wrong, or the adapter that is switched off.
        architecture: Name in vLLM's registry; right without the fault.
        result: `WRONG` or `FAILED`.
        words: A part of what the row says.
        read: Reads the residual stream wrongly; None where an adapter is switched off instead.
    """

    name: str
    architecture: str
    result: str
    words: str = ""
    read: Callable[[StreamForm, Any], Any] | None = None

    def inflict(self) -> None:
        """Break it, in this process and those that it forks."""
        if self.read is not None:
            capture.read_stream = self.read
            return
        os.environ["SPECULATORS_COMPAT_DISABLE"] = self.name
        speculators_compat.deactivate()
        speculators_compat.activate()


def _forgotten(form: StreamForm, output: Any) -> Any:
    return read_stream(StreamForm.FIRST if form is StreamForm.PARTS else form, output)


def _added_twice(form: StreamForm, output: Any) -> Any:
    return read_stream(StreamForm.PARTS if form is StreamForm.FIRST else form, output)


def _one_row_late(form: StreamForm, output: Any) -> Any:
    return read_stream(form, output).roll(1, dims=0)


FAULTS = (
    Fault("residual forgotten", "LlamaForCausalLM", "WRONG", read=_forgotten),
    Fault("residual added twice", "Cohere2ForCausalLM", "WRONG", read=_added_twice),
    Fault("one row late", "GPT2LMHeadModel", "WRONG", read=_one_row_late),
    Fault("sliding_window", "MistralForCausalLM", "WRONG"),
    Fault("decoder_layer_count", "Qwen2_5OmniForConditionalGeneration", "FAILED", "Cannot determine num_layers from config"),
    Fault("kv_cache_groups", "DeciLMForCausalLM", "FAILED", "in the same KV cache group must have the same attention spec"),
    Fault("generate_runner", "GritLM", "FAILED", "Worker failed"),
)
