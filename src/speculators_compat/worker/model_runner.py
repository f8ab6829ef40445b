"""Reads from a model runner which rows of the flattened batch belong to which request, at which token positions."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from speculators_compat.errors import CaptureError, ModelError


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


class ModelRunner:
    """What capture asks of vLLM's `GPUModelRunner`, also the base of the CPU's: vllm/v1/worker/gpu_model_runner.py.

    Args:
        runner: The worker's model runner.
    """

    def __init__(self, runner: Any) -> None:
        self.runner = runner

    @staticmethod
    def of(runner: Any) -> ModelRunner:
        """The reader for a model runner; of vLLM's two, only one keeps a persistent input batch.

        Raises:
            ModelError: If it is neither of the two as they are known.
        """
        if hasattr(runner, "input_batch"):
            return ModelRunner(runner)
        if not hasattr(getattr(runner, "req_states", None), "num_computed_tokens_np"):
            raise ModelError(
                f"{type(runner).__module__}.{type(runner).__name__} keeps no record of its batch that is known (expected "
                "input_batch, or req_states.num_computed_tokens_np). Set VLLM_USE_V2_MODEL_RUNNER=0."
            )
        return ModelRunnerV2(runner)

    def run_dummy_batch(self, tokens: int) -> None:
        """Run the model once, without attention metadata; there need not be a KV cache yet."""
        self.runner._dummy_run(tokens)

    def rows_of_step(self, scheduler_output: Any) -> Sequence[RowSpan]:
        """What has really been run in the step whose `execute_model` has just returned, in the order of its input batch.

        The scheduler's own order is not that order: new requests fill slots that finished ones have left, attention
        backends reorder, and Model Runner V2 sorts.

        Args:
            scheduler_output: The step's `SchedulerOutput`.

        Raises:
            CaptureError: If batch and scheduler output do not agree.
        """
        spans: list[RowSpan] = []
        row = 0
        for request_id, position, prompt_length in self._batch():
            count = scheduler_output.num_scheduled_tokens.get(request_id)
            if count is None:
                raise CaptureError(f"request {request_id} is in the input batch, but the scheduler gave it no tokens")
            spans.append(RowSpan(request_id, row, count, position, prompt_length))
            row += count
        if row != scheduler_output.total_num_scheduled_tokens:
            raise CaptureError(
                f"the input batch has {row} tokens, the scheduler output {scheduler_output.total_num_scheduled_tokens}"
            )
        return spans

    def can_end_early(self) -> bool:
        """Whether steps can be ended by `end_step`; if so, they are made ready for it.

        What waits for a step's sampled tokens waits for all of it, among the rest for its inputs to be read from host memory
        that the next step overwrites. vLLM has an event for that which it uses when it schedules asynchronously
        (`synchronize_input_prep` in `GPUModelRunner.execute_model`, since 0.11.1), so it is given it.
        """
        import torch

        runner = self.runner
        guarded = "synchronize_input_prep" in inspect.unwrap(type(runner).execute_model).__code__.co_names
        if not (guarded and hasattr(runner, "execute_model_state") and hasattr(runner, "prepare_inputs_event")):
            return False
        if runner.device.type == "cuda" and runner.prepare_inputs_event is None:
            runner.prepare_inputs_event = torch.cuda.Event(blocking=True)
        return runner.device.type in ("cuda", "cpu")

    def wait_for_device(self) -> None:
        """Wait for all that has been launched, where steps end early: nothing else does."""
        import torch

        if self.runner.device.type == "cuda":
            torch.cuda.current_stream().synchronize()

    def end_step(self, output: Any) -> Any:
        """End a step after its forward pass, without sampling tokens that nobody wants.

        Args:
            output: What `execute_model` has returned: None if it expects `sample_tokens` to follow.

        Returns:
            An output without tokens, or `output` if there was nothing to end.
        """
        from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

        if output is not None or self.runner.kv_connector_output is not None:
            return output
        self.runner.execute_model_state = None
        return EMPTY_MODEL_RUNNER_OUTPUT

    def _batch(self) -> Iterator[tuple[str, int, int]]:
        """Id, number of tokens computed before the step, and prompt length of each request, in the order of the rows."""
        batch, requests = self.runner.input_batch, self.runner.requests
        for request_id, computed in zip(batch.req_ids, batch.num_computed_tokens_cpu, strict=False):  # which has spare slots
            yield request_id, int(computed), requests[request_id].num_prompt_tokens


class ModelRunnerV2(ModelRunner):
    """Model Runner V2, vllm/v1/worker/gpu/model_runner.py: the batch of a step is kept until `sample_tokens`."""

    def run_dummy_batch(self, tokens: int) -> None:
        self.runner._dummy_run(tokens, skip_attn=True, is_profile=True)

    def can_end_early(self) -> bool:
        """It cannot: kernels read the batch from host memory while they run, and what guards that is not known."""
        return False

    def _batch(self) -> Iterator[tuple[str, int, int]]:
        batch, states = self.runner.execute_model_state.input_batch, self.runner.req_states
        for request_id, index in zip(batch.req_ids, batch.idx_mapping_np, strict=True):
            yield request_id, int(states.num_computed_tokens_np[index]), int(states.prompt_len.np[index])
