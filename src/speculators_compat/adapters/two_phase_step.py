"""`execute_model` only runs the forward pass now; the step ends with `sample_tokens`, which speculators 0.3 never calls.

Turning async scheduling off does not change that (`async_scheduling` is about when replies are read).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor
from speculators_compat.patching import Proxy, proxied


class WholeStepExecutor(Proxy):
    """An executor whose `execute_model` ends the step, and whose `sample_tokens` accepts that it has ended."""

    def collective_rpc(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        reply = self.__wrapped__.collective_rpc(method, *args, **kwargs)
        if method == "_setup_hidden_states_capture" and all(self.__wrapped__.collective_rpc(hasattr, args=("_end_steps",))):
            self.__wrapped__.collective_rpc("_end_steps")  # in the workers, so that nobody waits for tokens
        return reply

    def execute_model(self, scheduler_output: Any) -> Any:
        output = self.__wrapped__.execute_model(scheduler_output)
        return self.__wrapped__.sample_tokens(None) if output is None else output

    def sample_tokens(self, output: Any) -> Any:
        return output


def with_whole_steps(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return proxied(wrapped(*args, **kwargs), WholeStepExecutor)


def probe() -> Finding:
    from vllm.v1.executor.multiproc_executor import MultiprocExecutor

    if not hasattr(MultiprocExecutor, "sample_tokens"):
        return Finding.intact("execute_model is the whole step")
    return Finding.broken("a step is execute_model, then sample_tokens")


ADAPTER = Adapter(
    name="two_phase_step",
    contract="execute_model runs a whole step.",
    symptom="RuntimeError: State error: sample_tokens() must be called after execute_model() returns None.",
    vllm=">=0.11.1",
    speculators="<0.5.0",
    broken_by="vllm/v1/worker/gpu_model_runner.py, 0.11.1: execute_model returns None and keeps the step's state",
    removable_when="speculators 0.3 is no longer supported and prefill_loop calls sample_tokens itself",
    probe=probe,
    patches=(executor(with_whole_steps),),
)
