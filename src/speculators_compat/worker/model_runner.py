"""Reads from a model runner which rows of the flattened batch belong to which request, at which token positions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from speculators_compat.errors import CaptureError


@contextmanager
def forward_context_kept() -> Iterator[None]:
    """Give the running forward pass its context back as it was.

    Expert layers count themselves in it to find their weights (`moe_layer_index`, vllm/forward_context.py), so a layer that is
    called once more than the model's loop calls it would shift the weights of all that follow.
    """
    from vllm.forward_context import get_forward_context

    context = vars(get_forward_context())
    before = dict(context)
    try:
        yield
    finally:
        context.clear()
        context.update(before)


@dataclass(frozen=True)
class RowSpan:
    """Consecutive rows of a step's batch that belong to one request.

    Attributes:
        request_id: The request.
        row: First row in the flattened batch.
        count: Number of rows.
        position: Token position of the first row within the request.
        prompt_length: Tokens of the request's prompt; later positions are decoded ones.
    """

    request_id: str
    row: int
    count: int
    position: int
    prompt_length: int


def rows_of_step(model_runner: Any, scheduler_output: Any) -> Sequence[RowSpan]:
    """What the model runner really runs in this step, in the order of its input batch.

    The scheduler's own order is not that order: new requests fill slots that finished ones have left, and attention
    backends reorder. Valid from the start of the forward pass until the next step.

    Args:
        model_runner: vLLM's `GPUModelRunner` (also the base of the CPU's), from vllm/v1/worker/gpu_model_runner.py.
        scheduler_output: The step's `SchedulerOutput`.

    Raises:
        CaptureError: If batch and scheduler output do not agree.
    """
    batch = model_runner.input_batch
    spans: list[RowSpan] = []
    row = 0
    for index, request_id in enumerate(batch.req_ids):
        count = scheduler_output.num_scheduled_tokens.get(request_id)
        if count is None:
            raise CaptureError(f"request {request_id} is in the input batch, but the scheduler gave it no tokens")
        position = int(batch.num_computed_tokens_cpu[index])
        spans.append(RowSpan(request_id, row, count, position, model_runner.requests[request_id].num_prompt_tokens))
        row += count
    if row != scheduler_output.total_num_scheduled_tokens:
        raise CaptureError(
            f"the input batch has {row} tokens, the scheduler output {scheduler_output.total_num_scheduled_tokens}"
        )
    return spans
