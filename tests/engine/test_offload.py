"""Threads that carry rows to the host: in order, completely, and with nothing under way when they are said to have ended.

The copy itself is a stand-in, since there is no GPU here; tests/gpu/run_on_gpu.py runs the real one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from speculators_compat.worker.offload import LEAST_BYTES, PINNED_BYTES, THREADS, Offload

READY = object()


class OnDevice:
    """Rows that say that they are on a GPU."""

    is_cuda = True
    itemsize = 4

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, which: Any) -> Any:
        return OnDevice(self.rows[which]) if isinstance(which, slice) else self.rows[which]

    def numel(self) -> int:
        return self.rows.numel()


class SlowOffload(Offload):
    """Copies after a while, the first pieces last."""

    def _copy(self, rows: Any, ready: Any) -> torch.Tensor:
        assert ready is READY
        time.sleep(0.02 if rows.rows[0, 0] == 0 else 0.005)
        return rows.rows.clone()  # type: ignore[no-any-return]

    def _copy_behind(self, rows: Any, ready: Any) -> tuple[torch.Tensor, Any]:
        assert ready is READY
        on_host = torch.full_like(rows.rows, -2)
        return on_host, Copied(lambda: on_host.copy_(rows.rows))


class Copied:
    """An event that waits for nothing, and makes true what is only true afterwards."""

    def __init__(self, copy: Callable[[], object]) -> None:
        self.synchronize = copy


def rows_of(count: int, width: int, step: int = 0) -> Any:
    return OnDevice(torch.arange(count * width, dtype=torch.float32).view(count, width) + 1000 * step * count * width)


@pytest.mark.parametrize(("count", "width"), [(1, 8), (40, 8), (1000, 1024), (20000, 1024)])
def test_every_row_arrives_once(count: int, width: int) -> None:
    offload, given, pieces = SlowOffload(), rows_of(count, width), []
    arrived = torch.full((count, width), -1.0)

    def deliver(first: int, rows: torch.Tensor) -> None:
        pieces.append(rows.numel() * 4)
        assert bool((arrived[first : first + len(rows)] == -1).all())
        arrived[first : first + len(rows)] = rows

    offload.start(0, given, READY, deliver)
    assert offload.finish() is None
    assert torch.equal(arrived, given.rows)
    assert max(pieces) <= PINNED_BYTES
    assert len(pieces) == 1 or min(sorted(pieces)[1:]) >= LEAST_BYTES - width * 4
    offload.close()


def test_few_rows_arrive_without_a_thread_and_before_their_layers_next() -> None:
    offload, arrived, threads = SlowOffload(), [], threading.active_count()
    for step in range(3):
        for layer in range(2):
            offload.start(layer, rows_of(40, 8, step), READY, lambda first, rows: arrived.append((first, rows.clone())))
    assert len(arrived) == 4
    offload.wait(1)
    assert len(arrived) == 5
    assert offload.finish() is None
    assert threading.active_count() == threads
    for step in range(3):
        for first, rows in arrived[2 * step : 2 * step + 2]:
            assert first == 0
            assert torch.equal(rows, rows_of(40, 8, step).rows)

    def full(first: int, rows: torch.Tensor) -> None:
        raise OSError("no memory")

    offload.start(0, rows_of(40, 8), READY, full)
    offload.start(0, rows_of(4000, 512), READY, lambda first, rows: None)
    assert str(offload.finish()) == "no memory"
    assert offload.finish() is None
    offload.close()


def test_a_layers_step_waits_for_its_step_before_and_for_no_other_layer() -> None:
    offload, seen = SlowOffload(), []
    for step in range(3):
        for layer in range(4):
            offload.start(layer, rows_of(1000, 512, step), READY, lambda first, rows, at=(layer, step): seen.append(at))
    assert offload.finish() is None
    for layer in range(4):
        steps = [step for other, step in seen if other == layer]
        assert steps == sorted(steps)
        assert set(steps) == {0, 1, 2}
    offload.close()


def test_what_fails_in_a_thread_is_told_once_and_when_all_has_ended() -> None:
    offload, ended = SlowOffload(), []

    def deliver(first: int, rows: torch.Tensor) -> None:
        if first == 0:
            raise OSError("no memory")
        time.sleep(0.05)
        ended.append(first)

    offload.start(0, rows_of(4000, 512), READY, deliver)
    offload.start(1, rows_of(10, 8), READY, lambda first, rows: ended.append(-1))
    offload.wait(0)  # as the next step does
    error = offload.finish()
    assert str(error) == "no memory"
    assert len(ended) == THREADS
    assert offload.finish() is None
    offload.close()


def test_without_threads_nothing_runs_when_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    offload, ended, start = SlowOffload(), [], threading.Thread.start
    started: list[threading.Thread] = []

    def few(thread: threading.Thread) -> None:
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", few)
        with pytest.raises(RuntimeError, match="new thread"):
            offload.start(0, rows_of(4000, 512), READY, lambda first, rows: ended.append(first))
    assert "new thread" in str(offload.finish())
    count = len(ended)
    time.sleep(0.2)
    assert len(ended) == count
    offload.start(0, rows_of(40, 8), READY, lambda first, rows: ended.append(first))
    assert offload.finish() is None
    assert len(ended) == count + 1
    offload.close()
