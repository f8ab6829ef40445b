"""Taps on decoder layers, and the hidden states that they yield, placed by request id and token position."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from speculators_compat.errors import CaptureError
from speculators_compat.worker.model_runner import ModelRunner, RowSpan
from speculators_compat.worker.offload import Offload, are_many, event
from speculators_compat.worker.residual_stream import StreamForm, read_stream
from speculators_compat.worker.shared_memory import Extent, SharedMemory, Slab

if TYPE_CHECKING:
    from torch import Tensor, nn

logger = logging.getLogger("speculators_compat")


@dataclass
class PromptStates:
    """The hidden states of one prompt.

    Attributes:
        layers: One CPU tensor `[prompt_length, hidden_size]` per captured layer, in ascending layer order; none if they are in
            memory that is shared.
        computed: One byte per token position, 1 where its states have been placed.
        extent: Where in shared memory the layers are.
    """

    layers: list[Tensor]
    computed: bytearray
    extent: Extent | None = None

    def write(self, layer: int, position: int, rows: Tensor) -> None:
        """Put rows, a CPU tensor, at their token position."""
        if self.extent is not None:
            self.extent.write(layer, position, rows)
        else:
            self.layers[layer][position : position + len(rows)] = rows


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
        store: Called after each forward pass with one tensor `[rows, hidden_size]` per layer, in ascending layer order, to call
            `place` in turn. Without it they are placed at once, each as soon as its layer has run.
    """

    def __init__(
        self,
        model_runner: Any,
        layers: Mapping[int, nn.Module],
        forms: Mapping[int, StreamForm],
        store: Callable[[list[Tensor]], None] | None = None,
        scale: float = 1.0,
    ) -> None:
        self.model_runner = model_runner
        self.steps = ModelRunner.of(model_runner)
        self.forms = forms
        self.scale = scale
        self.store = store
        self.scheduler_output: Any = None
        self.spans: Sequence[RowSpan] = ()
        self.states: dict[int, Tensor] = {}
        self.ready: dict[int, Any] = {}
        self.captured: CapturedStates | None = None
        self.offload = Offload()
        self.memory = SharedMemory()
        self.shares_memory = True
        self.ends_steps = False
        self._order = {index: order for order, index in enumerate(sorted(layers))}
        self._taps = [layer.register_forward_hook(self._tap(index)) for index, layer in layers.items()]
        self._execute_model = model_runner.execute_model
        model_runner.execute_model = self.execute_model

    def close(self) -> None:
        """Take the taps off and stop watching the model runner."""
        for tap in self._taps:
            tap.remove()
        self.model_runner.execute_model = self._execute_model
        self.offload.close()
        self.memory.close()

    def share_no_memory(self, error: OSError | None = None) -> None:
        """Send states themselves from now on, pickled; a caller that cannot map this process's memory has said so itself."""
        if self.shares_memory and error is not None:
            logger.warning("memory cannot be shared (%s): hidden states are pickled, which is several times slower", error)
        self.shares_memory = False

    def end_steps(self) -> None:
        """End steps after their forward pass from now on, where that can be done: the next begins while the device computes."""
        self.ends_steps = self.steps.can_end_early()

    def sample(self) -> Slab | None:
        """A slab by which the caller can see whether it can map this process's memory; None if there is none to be had."""
        try:
            return self.memory.sample()
        except OSError as error:
            self.share_no_memory(error)
            return None

    def begin(self) -> None:
        """Forget earlier states and capture from now on."""
        self.offload.finish()  # states of a call that was given up may be under way, to memory that is let go now
        self.memory.close()
        self.captured = CapturedStates()

    def extents(self) -> list[Extent]:
        """Where in shared memory the states of this extraction are or will be."""
        prompts = self.captured.prompts.values() if self.captured is not None else ()
        return [prompt.extent for prompt in prompts if prompt.extent is not None]

    def end(self) -> CapturedStates | None:
        """Stop capturing, and give away what has been captured, or where it is; None if nothing was begun."""
        if (error := self.offload.finish()) is not None:
            self._note(error)
        if self.ends_steps:
            self._guarded(self.steps.wait_for_device)
        captured, self.captured = self.captured, None
        return captured

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """The model runner's step, with the states that its forward pass yields stored afterwards."""
        if kwargs.get("dummy_run"):  # Model Runner V2 has its own dummy batches go this way
            return self._execute_model(scheduler_output, *args, **kwargs)
        self.states, self.ready = {}, {}
        capturing = bool(self._taps) and self.captured is not None and scheduler_output.total_num_scheduled_tokens > 0
        self.scheduler_output = scheduler_output if capturing else None
        try:
            output = self._execute_model(scheduler_output, *args, **kwargs)
            if capturing:
                self._guarded(self._store_step)
            return self.steps.end_step(output) if self.ends_steps and self.captured is not None else output
        finally:
            self.scheduler_output = None
            self.states = {}

    def _store_step(self) -> None:
        self.spans = self.steps.rows_of_step(self.scheduler_output)
        rows = [self.states[index] for index in sorted(self.states)]
        if self.store is not None:
            self.store(rows)
        else:
            self._carry(rows, [self.ready[index] for index in sorted(self.ready)])

    def _tap(self, index: int) -> Callable[..., None]:
        def tap(layer: nn.Module, args: Any, output: Any) -> None:
            if self.scheduler_output is not None:
                self._guarded(lambda: self._read(index, output))

        return tap

    def _read(self, index: int, output: Any) -> None:
        if index in self.states:
            raise CaptureError(f"decoder layer {index} ran twice in one step")
        self.offload.wait(self._order[index])  # so that there is one step's state of a layer on the device, and no more
        state = read_stream(self.forms[index], output)
        if (scale := self.scale) != 1:
            state.mul_(scale)
            if not state.isfinite().all():
                raise CaptureError(
                    f"the state of decoder layer {index} does not fit into float16: the model runs scaled down by {scale}. "
                    "Run it in bfloat16."
                )
        self.states[index] = state
        self.ready[index] = event() if state.is_cuda else None

    def place(self, rows: Sequence[Tensor]) -> None:
        """Put the rows of the step that has just run where they belong.

        Args:
            rows: One tensor `[rows, hidden_size]` per captured layer; rows past the scheduled tokens are padding.

        Raises:
            CaptureError: If there are fewer layers or rows than expected.
        """
        self._carry(rows, [None] * len(rows))
        for order in range(len(rows)):
            self.offload.wait(order)  # so that the caller may go on writing to them

    def _carry(self, rows: Sequence[Tensor], ready: Sequence[Any]) -> None:
        """Have rows carried to where they belong, each layer's when its event has come."""
        captured = self.captured
        if captured is None:
            raise CaptureError("states were stored while no extraction is in progress")
        if len(rows) != len(self.forms):
            raise CaptureError(f"{len(rows)} layers were captured in one step, expected {len(self.forms)}")
        total = sum(span.count for span in self.spans)
        if short := [len(layer) for layer in rows if len(layer) < total]:
            raise CaptureError(f"a layer ran on {short[0]} rows, but the step has {total} tokens")
        spans = [replace(span, count=min(span.count, span.prompt_length - span.position)) for span in self.spans]
        spans = [span for span in spans if span.count > 0]  # the others are decoded tokens
        new = {span.request_id: span.prompt_length for span in spans if span.request_id not in captured.prompts}
        captured.prompts |= zip(new, self._memory_for(list(new.values()), rows), strict=True)
        places = _joined((span, captured.prompts[span.request_id]) for span in spans)
        for order, (layer, came) in enumerate(zip(rows, ready, strict=True)):
            self.offload.start(order, layer[:total], came, _writer(order, places))
        for span in spans:
            computed = captured.prompts[span.request_id].computed
            computed[span.position : span.position + span.count] = b"\x01" * span.count

    def _memory_for(self, tokens: Sequence[int], like: Sequence[Tensor]) -> list[PromptStates]:
        """Memory for prompts of so many tokens."""
        import torch

        kinds = {(layer.shape[1:], layer.dtype) for layer in like}
        if self.shares_memory and len(kinds) == 1:
            try:
                groups = self.memory.empty(len(like), tokens, *kinds.pop())
            except OSError as error:
                self.share_no_memory(error)
            else:
                if like[0].is_cuda and are_many(like[0]):
                    for first, *_ in groups:
                        self.offload.meanwhile(first.allocate)
                return [PromptStates([], bytearray(extent.shape[0]), extent) for extent in chain.from_iterable(groups)]
        layers = [[torch.empty(count, *layer.shape[1:], dtype=layer.dtype) for layer in like] for count in tokens]
        return [PromptStates(own, bytearray(count)) for count, own in zip(tokens, layers, strict=True)]

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except Exception as error:
            logger.exception("hidden states of this step could not be captured")
            self._note(error)

    def _note(self, error: BaseException) -> None:
        if self.captured is not None and self.captured.failure is None:
            self.captured.failure = f"{type(error).__name__}: {error}"


def _joined(places: Iterable[tuple[RowSpan, PromptStates]]) -> list[tuple[RowSpan, PromptStates]]:
    """The places of a step, those as one that lie side by side in memory too: they are written at once."""
    found: list[tuple[RowSpan, PromptStates]] = []
    for span, prompt in places:
        if found and (both := _as_one(*found[-1], span, prompt)) is not None:
            found[-1] = both
        else:
            found.append((span, prompt))
    return found


def _as_one(
    span: RowSpan, prompt: PromptStates, next_span: RowSpan, next_prompt: PromptStates
) -> tuple[RowSpan, PromptStates] | None:
    if prompt.extent is None or next_prompt.extent is None:
        return None
    whole = span.position + span.count == prompt.extent.shape[0] and next_span.position == 0
    extent = prompt.extent.joined(next_prompt.extent)
    if not whole or extent is None or span.row + span.count != next_span.row:
        return None
    return replace(span, count=span.count + next_span.count), replace(prompt, extent=extent)


def _writer(layer: int, places: Sequence[tuple[RowSpan, PromptStates]]) -> Callable[[int, Tensor], None]:
    """What writes rows of a layer that have come to the host, given the number of the first, to the prompts they are of."""

    def write(first: int, rows: Tensor) -> None:
        for span, prompt in places:
            start, end = max(span.row, first), min(span.row + span.count, first + len(rows))
            if start < end:
                prompt.write(layer, span.position + start - span.row, rows[start - first : end - first])

    return write
