"""Carries captured rows off the device while the device computes on: into pinned memory by streams of their own, then away.

Each thread has one piece of pinned memory, so the host's share is fixed; a layer's rows of one step have to be gone before its
rows of the next are made, so the device's share is that of one step.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("speculators_compat")

THREADS = 8
PINNED_BYTES = 16 * 2**20
LEAST_BYTES = 256 * 2**10  # of a thread's piece; what is no more than that costs less without threads

Deliver = Callable[[int, "Tensor"], None]


class Offload:
    """Threads that copy rows to the host and deliver them there.

    Rows that are on the host are delivered at once, and few rows when they are waited for: where steps are short, threads would
    keep the one that launches them from running.
    """

    def __init__(self) -> None:
        self._own = threading.local()
        self._error: BaseException | None = None
        self._renew()

    def _renew(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="speculators-compat-offload")
        self._under_way: defaultdict[int, list[Future[None]]] = defaultdict(list)
        self._few: dict[int, tuple[Tensor, Any, Deliver]] = {}  # rows, when they have been copied, and where to
        self._besides: list[Future[None]] = []

    def start(self, layer: int, rows: Tensor, ready: Any, deliver: Deliver) -> None:
        """Begin to carry one layer's rows of a step; those of its step before are waited for.

        Args:
            layer: Which layer.
            rows: `[rows, ...]` on any device; must not be written to until they have been waited for.
            ready: CUDA event after which they are what they are to be; None for now.
            deliver: Called with the number of the first row and a CPU tensor of rows, which is overwritten afterwards. What it
                raises comes from `finish`.
        """
        self.wait(layer)
        if not rows.is_cuda:
            self._keeping_errors(deliver, 0, rows.cpu())
            return
        ready = ready or event()
        if not are_many(rows):
            self._few[layer] = (*self._copy_behind(rows, ready), deliver)
            return
        row_bytes = rows[0].numel() * rows.itemsize
        share = min(max(rows.numel() * rows.itemsize / THREADS, LEAST_BYTES), PINNED_BYTES)
        at_once = max(1, int(share / row_bytes))
        for first in range(0, len(rows), at_once):
            piece = self._submit(self._carry, rows[first : first + at_once], first, ready, deliver)
            self._under_way[layer].append(piece)

    def meanwhile(self, action: Callable[[], None]) -> None:
        """Have a thread do something, before what is started later."""
        self._besides.append(self._submit(action))

    def wait(self, layer: int) -> None:
        """Wait until what was begun for a layer has been delivered."""
        if (few := self._few.pop(layer, None)) is not None:
            self._keeping_errors(_deliver_when_copied, *few)
        wait(self._under_way.pop(layer, ()))

    def finish(self) -> BaseException | None:
        """Wait for everything: nothing is under way afterwards, whatever it came to.

        Returns:
            The first that was raised since the last time, if anything was.
        """
        for layer in [*self._few]:
            self.wait(layer)
        wait([*self._besides, *chain.from_iterable(self._under_way.values())])
        self._besides.clear()
        self._under_way.clear()
        error, self._error = self._error, None
        return error

    def close(self) -> None:
        """End the threads, when all is delivered."""
        self._threads.shutdown()

    def _submit(self, action: Callable[..., None], *args: Any) -> Future[None]:
        try:
            return self._threads.submit(self._keeping_errors, action, *args)
        except RuntimeError as error:
            # No more threads can be had. Some of what has been queued might run when nobody waits for it any more.
            self._threads.shutdown(cancel_futures=True)
            self._renew()
            self._error = self._error or error
            raise

    def _keeping_errors(self, action: Callable[..., None], *args: Any) -> None:
        import torch

        try:
            with torch.inference_mode():
                action(*args)
        except Exception as error:
            logger.exception("hidden states of a step could not be carried to the host")
            self._error = self._error or error

    def _carry(self, rows: Tensor, first: int, ready: Any, deliver: Deliver) -> None:
        deliver(first, self._copy(rows, ready))

    def _copy(self, rows: Tensor, ready: Any) -> Tensor:
        """The rows in this thread's pinned memory."""
        import torch

        stream, pinned = self._of_this_thread(rows.device)
        on_host = pinned[: rows.numel() * rows.itemsize].view(rows.dtype).view(rows.shape)
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            on_host.copy_(rows, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)  # the thread sleeps; it would spin otherwise
            copied.record(stream)
        copied.synchronize()
        return on_host

    def _copy_behind(self, rows: Tensor, ready: Any) -> tuple[Tensor, Any]:
        """Where the current stream copies the rows to, in pinned memory, and the event after which they are there."""
        import torch

        on_host = _pinned(rows.numel() * rows.itemsize).view(rows.dtype).view(rows.shape)
        torch.cuda.current_stream(rows.device).wait_event(ready)
        on_host.copy_(rows, non_blocking=True)
        return on_host, event()

    def _of_this_thread(self, device: Any) -> tuple[Any, Tensor]:
        import torch

        if not hasattr(self._own, "stream"):
            self._own.stream, self._own.pinned = torch.cuda.Stream(device), _pinned(PINNED_BYTES)
        return self._own.stream, self._own.pinned


def are_many(rows: Tensor) -> bool:
    """Whether rows are worth a thread."""
    return bool(rows.numel() * rows.itemsize > LEAST_BYTES)


def _deliver_when_copied(rows: Tensor, copied: Any, deliver: Deliver) -> None:
    copied.synchronize()
    deliver(0, rows)


def _pinned(count: int) -> Tensor:
    """Bytes that the device copies to by itself, if there are any to be had."""
    import torch

    try:
        return torch.empty(count, dtype=torch.uint8, pin_memory=True)
    except RuntimeError as error:
        _warn_once(f"no memory can be pinned ({error}): hidden states leave the GPU more slowly")
        return torch.empty(count, dtype=torch.uint8)


@cache
def _warn_once(words: str) -> None:
    logger.warning(words)


def event() -> Any:
    """A CUDA event after all that the current stream has been given so far."""
    import torch

    made = torch.cuda.Event()
    made.record()
    return made
