"""Decides, for the model at hand, how the residual stream is read from what a decoder layer returns.

vLLM's layers return the stream alone, or as two parts that the next layer adds up (hidden and residual, so that the
addition fuses with the next norm), or already added up beside a residual that nobody reads any more. The last two look the
same, so the next layer is asked: it is run with the residual it was handed and with another one. If its output does not
change, it does not read the residual. Attention has no metadata in such a run and leaves memory as it finds it, so its output
is zeroed; and the layer is asked about its hidden input too, which it must read, or its answer is worth nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from enum import Enum
from typing import TYPE_CHECKING, Any

from speculators_compat.errors import ModelError
from speculators_compat.worker.model_runner import forward_context_kept

if TYPE_CHECKING:
    from torch import Tensor, nn


UNCHANGED, CHANGED = 0.01, 0.1


class StreamForm(Enum):
    """What a decoder layer returns."""

    ALONE = "the stream"
    PARTS = "hidden and residual, to be added"
    FIRST = "the stream, and a residual that is not read"


def read_stream(form: StreamForm, output: Any) -> Tensor:
    """The residual stream after a layer, in memory of its own (the next layer may overwrite its input).

    Args:
        form: How the layer returns it.
        output: What the layer returned, for a batch of `n` rows.

    Returns:
        Shape `[n, hidden_size]`, on the layer's device, in the model's dtype.
    """
    if form is StreamForm.PARTS:
        return output[0] + output[1]  # type: ignore[no-any-return]
    return _first(output).clone()  # type: ignore[no-any-return]


def learn_stream_forms(
    layers: Sequence[nn.Module], hidden_size: int, run_forward: Callable[[], Any]
) -> tuple[list[StreamForm], float]:
    """Find out how each decoder layer returns the residual stream.

    Args:
        layers: The decoder layers, in order.
        hidden_size: Width of the stream.
        run_forward: Runs the model once on a dummy batch, without attention metadata.

    Returns:
        One form per layer, and what states have to be multiplied by to undo a scaling of the stream by its first layer.

    Raises:
        ModelError: If a layer returns something else, or it cannot be told how.
    """
    observer = _Observer(layers, hidden_size)
    with ExitStack() as stack:
        for module in (module for layer in layers for module in layer.modules() if _keeps_state(module)):
            stack.callback(module.register_forward_hook(_zeroed, with_kwargs=True).remove)
        for index, layer in enumerate(layers):
            stack.callback(layer.register_forward_pre_hook(observer.before(index), with_kwargs=True).remove)
            stack.callback(layer.register_forward_hook(observer.after(index)).remove)
        run_forward()
    return [observer.form(index) for index in range(len(layers))], observer.scale


def _keeps_state(module: nn.Module) -> bool:
    """Whether a KV cache is kept for it, as for attention and recurrent layers. Before 0.11.2, attention names no spec."""
    return hasattr(module, "get_kv_cache_spec") or hasattr(module, "kv_cache")


def _zeroed(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
    """Replace what a layer with a KV cache returned, or wrote into its argument `output`, by zeros."""
    import torch

    given = inspect.signature(module.forward).bind(*args, **kwargs).arguments
    for tensor in (output, given.get("output", kwargs.get("output"))):
        if isinstance(tensor, torch.Tensor):
            tensor.zero_()
    return output


class _Observer:
    """Hooks for one forward pass. Layers are asked through their `forward`, which calls no hooks on the layers themselves."""

    def __init__(self, layers: Sequence[nn.Module], hidden_size: int) -> None:
        self.layers = layers
        self.hidden_size = hidden_size
        self.outputs: dict[int, Any] = {}
        self.calls = [0] * len(layers)
        self.form_of_class: dict[type, StreamForm] = {}
        self.scale = 1.0

    def after(self, index: int) -> Callable[..., None]:
        def hook(layer: nn.Module, args: Any, output: Any) -> None:
            self.outputs[index] = output
            self.calls[index] += 1

        return hook

    def before(self, index: int) -> Callable[..., None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if index == 0:
                self.scale = _scale(layer, args, kwargs)
                return
            producer = type(self.layers[index - 1])
            parts = _parts(self.outputs.get(index - 1))
            if parts is not None and producer not in self.form_of_class:
                reads = _reads(layer, *parts, args, kwargs)
                self.form_of_class[producer] = StreamForm.PARTS if reads else StreamForm.FIRST

        return hook

    def form(self, index: int) -> StreamForm:
        layer, output = self.layers[index], self.outputs.get(index)
        name = f"decoder layer {index} ({type(layer).__name__})"
        if self.calls[index] != 1:
            raise ModelError(
                f"{name} runs {self.calls[index]} times in one forward pass, expected once: there is no one state after it"
            )
        shape = tuple(getattr(_first(output), "shape", ()))
        if len(shape) != 2 or shape[1] != self.hidden_size:
            raise ModelError(
                f"{name} returned {type(output).__name__} of shape {shape}, expected [tokens, {self.hidden_size}]: "
                "it has no single residual stream that could be captured"
            )
        if _parts(output) is None:
            return StreamForm.ALONE
        forms = {self.form_of_class.get(type(layer)), *self.form_of_class.values()} - {None}
        known = self.form_of_class.get(type(layer)) or (next(iter(forms)) if len(forms) == 1 else None)
        if known is None:
            raise ModelError(f"{name} returns two tensors, and no later layer shows whether they are to be added")
        return known


def _first(output: Any) -> Any:
    return output[0] if isinstance(output, tuple) and output else output


def _parts(output: Any) -> tuple[Tensor, Tensor] | None:
    """Hidden and residual, if `output` has both."""
    from torch import Tensor

    match output:
        case (Tensor() as hidden, Tensor() as residual, *_) if hidden.shape == residual.shape:
            return hidden, residual
    return None


def _scale(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """What a state has to be multiplied by to undo the first layer's scaling of the stream that enters it.

    In float16, DeepSeek's layers divide the stream by `routed_scaling_factor`, against overflow
    (vllm/model_executor/models/deepseek_v2.py, DeepseekV2DecoderLayer.forward); norms do not mind, but states would differ.
    Other layers have the attribute and do not divide. So a stream is sent through with attention and MLP zeroed.

    Raises:
        ModelError: If what comes out is neither that stream nor it divided by the factor.
    """
    import torch

    factor = getattr(layer, "routed_scaling_factor", None)
    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor) and value.is_floating_point()]
    if factor in (None, 1) or not inputs or inputs[0].dtype != torch.float16:
        return 1.0
    generator = torch.Generator().manual_seed(0)
    stream = torch.randn(inputs[0].shape, generator=generator).to(inputs[0])

    def fresh(value: Any) -> Any:
        return stream.clone() if value is inputs[0] else value

    zeroed = layer.mlp.register_forward_hook(_zeroed, with_kwargs=True)
    try:
        with forward_context_kept():
            output = layer.forward(*map(fresh, args), **{name: fresh(value) for name, value in kwargs.items()})
    finally:
        zeroed.remove()
    parts = _parts(output)
    left = (output if parts is None else parts[0] + parts[1]).float()
    ratio = float((left * stream.float()).sum() / stream.float().square().sum())
    for scale in (1.0, float(factor)):
        if abs(ratio * scale - 1) < UNCHANGED:
            return scale
    raise ModelError(
        f"{type(layer).__name__} scales the residual stream by {ratio:.4f} in float16; expected 1 or 1 / {factor}. "
        "Run the model in bfloat16."
    )


def _reads(layer: nn.Module, hidden: Tensor, residual: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether what `layer` computes depends on the residual that it is handed.

    Raises:
        ModelError: If the layer is not handed what was returned, or does not answer the control questions as it must.
    """
    import torch

    inputs = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    if not any(value is hidden for value in inputs):
        raise ModelError(
            f"{type(layer).__name__} is not handed what the layer before it returned: "
            "it cannot be told how the residual stream is made up"
        )
    if not any(value is residual for value in inputs):
        if any(value is not hidden and value.shape == residual.shape and value.is_floating_point() for value in inputs):
            raise ModelError(
                f"{type(layer).__name__} is handed something else than the residual that the layer before it returned: "
                "it cannot be told how the residual stream is made up"
            )
        return False
    generator = torch.Generator().manual_seed(0)
    first, second, third, fourth = (torch.randn(hidden.shape, generator=generator).to(hidden) for _ in range(4))

    def run(new_hidden: Tensor, new_residual: Tensor) -> Tensor:
        def fresh(value: Any) -> Any:
            if value is hidden or value is residual:
                return (new_hidden if value is hidden else new_residual).clone()
            return value.clone() if isinstance(value, torch.Tensor) else value

        with forward_context_kept():
            output = layer.forward(*map(fresh, args), **{name: fresh(value) for name, value in kwargs.items()})
        # Both parts: where attention is all that a layer does, its hidden output is zero in such a run.
        return torch.stack([part.float() for part in _parts(output) or (_first(output),)])

    before = run(first, second)

    def changes(new_hidden: Tensor, new_residual: Tensor) -> list[float]:
        """By part of the output."""
        after = run(new_hidden, new_residual)
        return [float((x - y).norm() / y.norm().clamp(min=1e-9)) for x, y in zip(after, before, strict=True)]

    same, by_hidden, by_residual = changes(first, second), changes(third, second), changes(first, fourth)
    # Random inputs change an output that depends on them by about its own size, and one that does not by rounding at most.
    unclear = any(UNCHANGED <= change <= CHANGED for change in by_residual)
    if max(same) >= UNCHANGED or max(by_hidden) <= CHANGED or unclear:
        raise ModelError(
            f"{type(layer).__name__} cannot be told to read the residual or not: the parts of its output changed by {same} "
            f"without a change, by {by_hidden} with another hidden input and by {by_residual} with another residual; expected "
            f"less than {UNCHANGED}, more than {CHANGED} in one of them, and either of the two"
        )
    # A part that follows the residual alone only passes it on.
    return any(hidden_too > CHANGED and change > CHANGED for hidden_too, change in zip(by_hidden, by_residual, strict=True))
