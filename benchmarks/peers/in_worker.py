"""What peers have vLLM's workers do: functions of the worker, sent by `collective_rpc`."""

from __future__ import annotations

import time
from collections import defaultdict
from typing import Any

import torch


def peak_gpu_bytes(worker: Any = None) -> int | None:
    """The most that was allocated since the last time, beside what is allocated now."""
    if not torch.cuda.is_available():
        return None
    peak = torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    return int(peak)


def start_clocks(worker: Any) -> None:
    """Measure how long rows are copied off the device, and written where the caller maps them."""
    offload = worker._capture.offload
    clocks: defaultdict[str, float] = defaultdict(float)
    copy, start = offload._copy, offload.start

    def timed_copy(rows: Any, ready: Any) -> Any:
        ready.synchronize()
        started = time.perf_counter()
        copied = copy(rows, ready)
        clocks["device to host*"] += time.perf_counter() - started
        return copied

    def timed_start(layer: int, rows: Any, ready: Any, deliver: Any) -> None:
        def timed_deliver(first: int, rows: Any) -> None:
            started = time.perf_counter()
            deliver(first, rows)
            clocks["writing" + "*" * on_device] += time.perf_counter() - started

        on_device = rows.is_cuda
        start(layer, rows, ready, timed_deliver)

    offload._copy, offload.start, worker._clocks = timed_copy, timed_start, clocks


def stop_clocks(worker: Any) -> dict[str, float]:
    """What was measured, in seconds; where several threads were at it, that of all of them."""
    if worker._capture is None or not hasattr(worker, "_clocks"):
        return {}
    del worker._capture.offload._copy, worker._capture.offload.start
    return dict(worker._clocks)
