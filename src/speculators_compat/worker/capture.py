"""Taps on decoder layers, and the hidden states that they yield, placed by request id and token position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from speculators_compat.errors import CaptureError
from speculators_compat.worker.model_runner import RowSpan, rows_of_step
from speculators_compat.worker.residual_stream import StreamForm, read_stream

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = logging.getLogger("speculators_compat")


@dataclass
class PromptStates:
    """The hidden states of one prompt.

    Attributes:
        layers: One CPU tensor `[prompt_length, hidden_size]` per captured layer, in ascending layer order.
        computed: One byte per token position, 1 where its states have been placed.
    """

    layers: list[Tensor]
    computed: bytearray


@dataclass
class CapturedStates:
    """A worker's reply: the states by request id, and what went wrong, if anything did."""

    prompts: dict[str, PromptStates] = field(default_factory=dict)
    failure: str | None = None


class Capture:
    """Captures the residual stream after some decoder layers while an extraction is in progress.

    Nothing here raises inside a forward pass: with tensor parallelism the other ranks would wait for this one for ever.
    What goes wrong is kept, and comes back with the reply.

    Args:
        model_runner: The worker's model runner; its `execute_model` is watched from now on.
        layers: The decoder layers to tap, by index; none on ranks that do not capture.
        forms: How each of them returns the residual stream.
        scale: What states are multiplied by, to undo a scaling of the stream within the model.
        store: Called after each forward pass with one tensor `[rows, hidden_size]` per layer, in ascending layer order.
    """

    def __init__(
        self,
        model_runner: Any,
        layers: Mapping[int, nn.Module],
        forms: Mapping[int, StreamForm],
        store: Callable[[list[Tensor]], None],
        scale: float = 1.0,
    ) -> None:
        self.model_runner = model_runner
        self.forms = forms
        self.scale = scale
        self.store = store
        self.scheduler_output: Any = None
        self.spans: Sequence[RowSpan] = ()
        self.states: dict[int, Tensor] = {}
        self.captured: CapturedStates | None = None
        self._taps = [layer.register_forward_hook(self._tap(index)) for index, layer in layers.items()]
        self._execute_model = model_runner.execute_model
        model_runner.execute_model = self.execute_model

    def close(self) -> None:
        """Take the taps off and stop watching the model runner."""
        for tap in self._taps:
            tap.remove()
        self.model_runner.execute_model = self._execute_model

    def begin(self) -> None:
        """Forget earlier states and capture from now on."""
        self.captured = CapturedStates()

    def end(self) -> CapturedStates | None:
        """Stop capturing, and give away what has been captured; None if nothing was begun."""
        captured, self.captured = self.captured, None
        return captured

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """The model runner's step, with the states that its forward pass yields stored afterwards."""
        self.states = {}
        self.spans = ()
        capturing = bool(self._taps) and self.captured is not None and scheduler_output.total_num_scheduled_tokens > 0
        self.scheduler_output = scheduler_output if capturing else None
        try:
            output = self._execute_model(scheduler_output, *args, **kwargs)
            if capturing:
                self._guarded(lambda: self.store([self.states[index] for index in sorted(self.states)]))
            return output
        finally:
            self.scheduler_output = None
            self.states = {}

    def _tap(self, index: int) -> Callable[..., None]:
        def tap(layer: nn.Module, args: Any, output: Any) -> None:
            if self.scheduler_output is not None:
                self._guarded(lambda: self._read(index, output))

        return tap

    def _read(self, index: int, output: Any) -> None:
        if not self.spans:
            self.spans = rows_of_step(self.model_runner, self.scheduler_output)
        if index in self.states:
            raise CaptureError(f"decoder layer {index} ran twice in one step")
        state = read_stream(self.forms[index], output)
        if (scale := self.scale) != 1:
            state.mul_(scale)
            if not state.isfinite().all():
                raise CaptureError(
                    f"the state of decoder layer {index} does not fit into float16: the model runs scaled down by {scale}. "
                    "Run it in bfloat16."
                )
        self.states[index] = state

    def place(self, rows: Sequence[Tensor]) -> None:
        """Put the rows of the step that has just run where they belong.

        Args:
            rows: One tensor `[rows, hidden_size]` per captured layer; rows past the scheduled tokens are padding.

        Raises:
            CaptureError: If there are fewer layers or rows than expected.
        """
        import torch

        captured = self.captured
        if captured is None:
            raise CaptureError("states were stored while no extraction is in progress")
        if len(rows) != len(self.forms):
            raise CaptureError(f"{len(rows)} layers were captured in one step, expected {len(self.forms)}")
        total = sum(span.count for span in self.spans)
        if short := [len(layer) for layer in rows if len(layer) < total]:
            raise CaptureError(f"a layer ran on {short[0]} rows, but the step has {total} tokens")
        on_host = [layer[:total].cpu() for layer in rows]
        for span in self.spans:
            prompt = captured.prompts.get(span.request_id)
            if prompt is None:
                prompt = captured.prompts[span.request_id] = PromptStates(
                    [torch.empty((span.prompt_length, *layer.shape[1:]), dtype=layer.dtype) for layer in on_host],
                    bytearray(span.prompt_length),
                )
            end = min(span.position + span.count, span.prompt_length)
            if (count := end - span.position) <= 0:
                continue
            for target, layer in zip(prompt.layers, on_host, strict=True):
                target[span.position : end] = layer[span.row : span.row + count]
            prompt.computed[span.position : end] = b"\x01" * count

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            logger.exception("hidden states of this step could not be captured")
            if self.captured is not None and self.captured.failure is None:
                self.captured.failure = f"{type(error).__name__}: {error}"
