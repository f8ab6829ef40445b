"""What tests have vLLM's workers do: functions of the worker, sent by `collective_rpc`."""

from __future__ import annotations

import gc
import os
import threading
import time
from typing import Any

import torch

LAG = 40_000_000  # cycles of the GPU, about 20 ms


def held_requests(worker: Any) -> int:
    """How many requests the worker keeps."""
    runner = worker.model_runner
    return len(runner.requests if hasattr(runner, "requests") else runner.req_states.req_id_to_index)


def in_use(worker: Any = None) -> dict[str, int]:
    """What the process that runs it has in use: private memory, what it maps of states, the GPU's, descriptors and threads."""
    gc.collect()
    time.sleep(0.5)  # memory is let go by a thread
    with open("/proc/self/smaps_rollup") as rollup:  # not status, which is behind by as much as 32 pages a core
        (anonymous,) = (line.split()[1] for line in rollup if line.startswith("Anonymous"))
    with open("/proc/self/maps") as maps:  # line by line: what the text takes would count the next time
        mappings = sum("memfd:speculators" in line for line in maps)
    return {
        "host bytes": int(anonymous) * 1024,
        "mappings of states": mappings,
        "GPU bytes": torch.cuda.memory_allocated() if torch.cuda.is_initialized() else 0,
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
    }


def describe_weights(worker: Any) -> list[str]:
    """The classes that hold and multiply weights, and the dtypes of what they hold."""
    model = worker.model_runner.get_model()
    methods = {type(module.quant_method).__name__ for module in model.modules() if hasattr(module, "quant_method")}
    return sorted(methods) + sorted({str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()})


def fail_once(worker: Any, rank: int) -> None:
    """Have one rank fail in the middle of its next forward pass."""
    if worker.rank == rank:
        (layer,) = (module for name, module in worker.model_runner.get_model().named_modules() if name.endswith("layers.2"))

        def fail(*args: Any) -> None:
            hook.remove()
            raise MemoryError("no memory for layer 2")

        hook = layer.register_forward_pre_hook(fail)


def answer_late(worker: Any) -> None:
    """Take longer over the next reply with states than the caller waits."""

    def late() -> Any:
        del worker._get_captured_states
        time.sleep(3)
        return worker._get_captured_states()

    worker._get_captured_states = late


def lag_behind(worker: Any) -> None:
    """Keep the GPU behind the host from now on, so that what is read or overwritten too early shows."""
    execute_model = worker._capture._execute_model

    def late(*args: Any, **kwargs: Any) -> Any:
        torch.cuda._sleep(LAG)
        return execute_model(*args, **kwargs)

    worker._capture._execute_model = late


def drop_layer_events(worker: Any) -> None:
    """Break the package: states are copied off the GPU without waiting for their layer."""
    offload = worker._capture.offload
    copy = offload._copy
    offload._copy = lambda rows, ready: copy(rows, torch.cuda.Event())


def drop_input_guard(worker: Any) -> None:
    """Break the package: a step's inputs are overwritten without waiting until the GPU has read them."""
    worker.model_runner.prepare_inputs_event = None
