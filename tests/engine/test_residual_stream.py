"""How layers are told apart by what they do with their residual, on layers of a few lines; no engine is started."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from speculators_compat.errors import ModelError
from speculators_compat.worker import residual_stream
from speculators_compat.worker.residual_stream import StreamForm, learn_stream_forms

WIDTH = 8


class Layer(nn.Module):
    """A decoder layer that computes `body(mix, hidden, residual)`, `mix` being its attention and MLP."""

    def __init__(self, body: Callable[..., Any]) -> None:
        super().__init__()
        self.mix = nn.Linear(WIDTH, WIDTH)
        self.body = body

    def forward(self, hidden: Tensor, residual: Tensor | None = None) -> Any:
        return self.body(self.mix, hidden, residual)


def fused(mix: nn.Module, hidden: Tensor, residual: Tensor | None) -> Any:
    total = hidden if residual is None else hidden + residual
    return mix(total), total


def nothing_but_attention(mix: nn.Module, hidden: Tensor, residual: Tensor | None) -> Any:
    """Attention is zeroed when layers are asked."""
    total = hidden if residual is None else hidden + residual
    return mix(total) * 0, total


def stale(mix: nn.Module, hidden: Tensor, residual: Tensor | None) -> Any:
    return hidden + mix(hidden), hidden


def passed_on(mix: nn.Module, hidden: Tensor, residual: Tensor | None) -> Any:
    return hidden + mix(hidden), hidden if residual is None else residual


def alone(mix: nn.Module, hidden: Tensor, residual: Tensor | None) -> Any:
    return hidden + mix(hidden)


def forms(
    monkeypatch: pytest.MonkeyPatch,
    body: Callable[..., Any],
    hand_on: Callable[[Any], tuple[Tensor, ...]] = lambda output: output if isinstance(output, tuple) else (output,),
    rounds: int = 1,
) -> set[StreamForm]:
    monkeypatch.setattr(residual_stream, "forward_context_kept", nullcontext)
    torch.manual_seed(0)
    layers = [Layer(body) for _ in range(3)]

    def run() -> None:
        for _ in range(rounds):
            handed: tuple[Tensor, ...] = (torch.randn(4, WIDTH),)
            for layer in layers:
                handed = hand_on(layer(*handed))

    with torch.no_grad():
        found, scale = learn_stream_forms(layers, WIDTH, run)
    assert scale == 1
    return set(found)


@pytest.mark.parametrize(
    ("body", "form"),
    [
        (fused, StreamForm.PARTS),
        (nothing_but_attention, StreamForm.PARTS),
        (stale, StreamForm.FIRST),
        (passed_on, StreamForm.FIRST),
        (alone, StreamForm.ALONE),
    ],
)
def test_each_form_is_told(monkeypatch: pytest.MonkeyPatch, body: Callable[..., Any], form: StreamForm) -> None:
    assert forms(monkeypatch, body) == {form}


def test_a_residual_that_nobody_is_handed_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    assert forms(monkeypatch, stale, hand_on=lambda output: (output[0],)) == {StreamForm.FIRST}


@pytest.mark.parametrize(
    "hand_on",
    [lambda output: (output[0], output[1].clone()), lambda output: (output[0], output[1] * 2), lambda output: (output[0] + 0,)],
    ids=["a copy", "a multiple", "another hidden"],
)
def test_what_is_not_handed_on_as_it_was_cannot_be_told(
    monkeypatch: pytest.MonkeyPatch, hand_on: Callable[[Any], tuple[Tensor, ...]]
) -> None:
    with pytest.raises(ModelError, match="it cannot be told how the residual stream is made up"):
        forms(monkeypatch, fused, hand_on)


def test_a_layer_that_runs_twice_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ModelError, match="runs 2 times in one forward pass"):
        forms(monkeypatch, alone, rounds=2)


def test_attention_is_zeroed_however_its_output_is_passed() -> None:
    class Mixer(nn.Module):
        def forward(self, hidden: Tensor, output: Tensor) -> None:
            output.copy_(hidden)

    mixer = Mixer()
    mixer.register_forward_hook(residual_stream._zeroed, with_kwargs=True)
    by_position, by_name = torch.ones(2), torch.ones(2)
    mixer(torch.ones(2), by_position)
    mixer(torch.ones(2), output=by_name)
    assert not by_position.any()
    assert not by_name.any()
