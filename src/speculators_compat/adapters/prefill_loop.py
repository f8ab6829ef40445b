"""Upstream's loop over the scheduler aborts prompts that are not complete, or keeps complete ones until none is admitted.

The scheduler that upstream is handed runs the whole prefill when it is first asked to schedule, and then has nothing left.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, generator_global, require
from speculators_compat.errors import CaptureError
from speculators_compat.extraction import current, uninterrupted
from speculators_compat.patching import Proxy, proxied
from speculators_compat.progress import Progress


class PrefillScheduler(Proxy):
    """A scheduler that prefills what has been submitted, all of it, at the first call of `schedule`."""

    def __init__(self, scheduler: Any, executor: Any) -> None:
        super().__init__(scheduler)
        self._self_executor = executor
        self._self_submitted: list[Any] = []

    def add_request(self, request: Any) -> None:
        self._self_submitted.append(request)

    @property
    def submitted(self) -> list[Any]:
        """Requests that have not been scheduled."""
        return self._self_submitted

    def forget_submitted(self) -> None:
        """Drop them."""
        self._self_submitted = []

    def schedule(self) -> Any:
        """Prefill everything submitted.

        Returns:
            vLLM's `SchedulerOutput` of a step without tokens, which ends upstream's loop.

        Raises:
            CaptureError: If a prompt does not fit into the KV cache.
        """
        submitted, self._self_submitted = self._self_submitted, []
        return uninterrupted(lambda: self._self_prefill(submitted))

    def _self_prefill(self, submitted: list[Any]) -> Any:
        from vllm.v1.request import RequestStatus

        scheduler, executor = self.__wrapped__, self._self_executor
        extraction = current()
        progress = extraction.progress if extraction is not None else Progress()
        progress.expect(sum(request.num_prompt_tokens for request in submitted))
        for request in submitted:
            scheduler.add_request(request)
        while True:
            output = scheduler.schedule()
            if output.total_num_scheduled_tokens == 0:
                break
            executor.execute_model(output)
            progress.advance(output.total_num_scheduled_tokens)
            requests = [scheduler.requests[request_id] for request_id in output.num_scheduled_tokens]
            for request in requests:
                # Its output has arrived. From 0.27 on, a preempted request with tokens in flight is not scheduled again.
                request.num_in_flight_tokens = 0
            complete = [r.request_id for r in requests if r.num_computed_tokens >= r.num_prompt_tokens]
            scheduler.finish_requests(complete, RequestStatus.FINISHED_ABORTED)
            if extraction is not None and extraction.stop:
                return output
        if output.finished_req_ids:
            # Workers free a request when they execute the next step, even one without tokens.
            executor.execute_model(output)
        if scheduler.requests:
            raise _stalled(scheduler)
        return output


def _stalled(scheduler: Any) -> CaptureError:
    request = scheduler.waiting.peek_request() if scheduler.waiting else next(iter(scheduler.requests.values()))
    extraction = current()
    order = list(extraction.prompt_lengths) if extraction is not None else []
    index = order.index(request.request_id) if request.request_id in order else "?"
    config = scheduler.cache_config
    return CaptureError(
        f"prompt {index} (request {request.request_id}) of {request.num_prompt_tokens} tokens cannot be scheduled, and holds "
        f"up {len(scheduler.requests) - 1} others. The KV cache holds {config.num_gpu_blocks} blocks of {config.block_size} "
        "tokens. Raise gpu_memory_utilization (on a CPU, VLLM_CPU_KVCACHE_SPACE), or cut the prompts (max_model_len)."
    )


def with_prefill(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    made = wrapped(*args, **kwargs)
    extraction = current()
    if extraction is None:
        return made
    return proxied(made, PrefillScheduler, extraction.generator.executor)


def probe() -> Finding:
    from vllm.v1.core.sched.scheduler import Scheduler

    require(Scheduler, "vllm.v1.core.sched.scheduler.Scheduler", "add_request", "schedule", "finish_requests")
    return Finding.broken("vLLM chunks prefills, and frees requests in workers one step after they finish")


ADAPTER = Adapter(
    name="prefill_loop",
    contract="Each step computes the whole of every prompt that it schedules, and every prompt is scheduled.",
    symptom="Silently wrong states when prompts have more tokens together than max_num_batched_tokens (0.3); "
    "RuntimeError: Request req_0_32 not found in captured states (0.4); workers keep every request for ever",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/v1/core/sched/scheduler.py: chunked prefill, max_num_seqs, finished_req_ids sent with the next step",
    removable_when="speculators finishes requests when their prefill is complete, and executes the last output",
    probe=probe,
    patches=(generator_global("Scheduler", with_prefill),),
)
