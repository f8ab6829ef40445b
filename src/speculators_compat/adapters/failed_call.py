"""A generate() that ends in an exception leaves requests in the scheduler and the workers, which the next call would run."""

from __future__ import annotations

import logging
import signal
import weakref
from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, generator_method, worker_method
from speculators_compat.errors import CaptureError
from speculators_compat.extraction import uninterrupted

logger = logging.getLogger("speculators_compat")

# Generators whose workers are in an unknown state.
_broken: weakref.WeakSet[Any] = weakref.WeakSet()


def generate_or_clean_up(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if instance in _broken:
        raise CaptureError("the workers could not be cleaned up after an earlier generate() failed: build a new generator")
    try:
        return wrapped(*args, **kwargs)
    except BaseException:
        if hasattr(instance, "scheduler"):
            uninterrupted(lambda: _clean_up(instance))
        raise


def build_or_shut_down(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    try:
        return wrapped(*args, **kwargs)
    except BaseException:
        if hasattr(instance, "executor"):
            uninterrupted(instance.executor.shutdown)
        raise


def _clean_up(generator: Any) -> None:
    from vllm.v1.request import RequestStatus

    scheduler, executor = generator.scheduler, generator.executor
    if hasattr(scheduler, "forget_submitted"):
        scheduler.forget_submitted()
    try:
        scheduler.finish_requests(list(scheduler.requests), RequestStatus.FINISHED_ABORTED)
        if scheduler.has_finished_requests():
            executor.execute_model(scheduler.schedule())
        executor.collective_rpc("_reset_capture")
    except Exception as error:  # noqa: BLE001 - the caller has to see the exception that came first
        logger.error("the workers could not be cleaned up after a failed generate(), and are shut down: %s", error)
        _broken.add(generator)
        executor.shutdown()


def outliving_interrupts(wrapped: Callable[..., Any], worker: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Leave Ctrl-C, which a terminal sends to workers too, to the caller. A worker whose caller dies ends all the same."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return wrapped(*args, **kwargs)


def probe() -> Finding:
    return Finding.broken("speculators cleans up only after a call that succeeds")


ADAPTER = Adapter(
    name="failed_call",
    contract="A call that failed does not change what the next call returns.",
    symptom="After an exception or Ctrl-C in generate(): RuntimeError, or states of the failed call's prompts, in the next",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="speculators: no clean-up in generate(); not a vLLM change",
    removable_when="speculators cleans up in generate() itself",
    probe=probe,
    patches=(
        generator_method("__init__", build_or_shut_down),
        generator_method("generate", generate_or_clean_up),
        worker_method("_setup_hidden_states_capture", outliving_interrupts),
    ),
)
