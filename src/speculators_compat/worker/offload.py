"""Carries captured rows off the device while the device computes on: into pinned memory by streams of their own, then away.

Each thread has one piece of pinned memory, so the host's share is fixed; a layer's rows of one step have to be gone before its
rows of the next are made, so the device's share is that of one step.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("speculators_compat")

THREADS = 8
PINNED_BYTES = 16 * 2**20
LEAST_BYTES = 256 * 2**10  # of a piece: smaller ones cost more than they save

Deliver = Callable[[int, "Tensor"], None]


class Offload:
    """Threads that copy rows to the host and deliver them there. Rows that are on the host are delivered at once."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="speculators-compat-offload")
        self._own = threading.local()
        self._under_way: dict[int, list[Future[None]]] = {}
        self._besides: list[Future[None]] = []

    def start(self, layer: int, rows: Tensor, ready: Any, deliver: Deliver) -> None:
        """Begin to carry one layer's rows of a step; those of its step before are waited for.

        Args:
            layer: Which layer.
            rows: `[rows, ...]` on any device; must not be written to any more.
            ready: CUDA event after which they are what they are to be; None for now.
            deliver: Called with the number of the first row and a CPU tensor of rows, which is overwritten afterwards.

        Raises:
            Exception: What `deliver` raised for the layer's step before.
        """
        self.wait(layer)
        if not rows.is_cuda:
            deliver(0, rows.cpu())
            return
        ready = ready or event()
        row_bytes = rows[0].numel() * rows.itemsize
        share = min(max(rows.numel() * rows.itemsize / THREADS, LEAST_BYTES), PINNED_BYTES)
        at_once = max(1, int(share / row_bytes))
        self._under_way[layer] = [
            self._threads.submit(self._carry, rows[first : first + at_once], first, ready, deliver)
            for first in range(0, len(rows), at_once)
        ]

    def meanwhile(self, action: Callable[[], None]) -> None:
        """Have a thread do something, before what is started later."""
        self._besides.append(self._threads.submit(action))

    def wait(self, layer: int) -> None:
        """Wait until what was begun for a layer has been delivered.

        Raises:
            Exception: What `deliver` raised.
        """
        if error := _first_error(self._under_way.pop(layer, ())):
            raise error

    def finish(self) -> BaseException | None:
        """Wait for everything: nothing is under way afterwards, whatever it came to.

        Returns:
            The first that was raised, if anything was.
        """
        everything = [*self._besides, *chain.from_iterable(self._under_way.values())]
        self._besides, self._under_way = [], {}
        return _first_error(everything)

    def close(self) -> None:
        """End the threads, when all is delivered."""
        self._threads.shutdown()

    def _carry(self, rows: Tensor, first: int, ready: Any, deliver: Deliver) -> None:
        import torch

        with torch.inference_mode():
            deliver(first, self._copy(rows, ready))

    def _copy(self, rows: Tensor, ready: Any) -> Tensor:
        """The rows in this thread's pinned memory."""
        import torch

        stream, pinned = self._of_this_thread(rows)
        on_host = pinned[: rows.numel() * rows.itemsize].view(rows.dtype).view(rows.shape)
        with torch.cuda.stream(stream):
            stream.wait_event(ready)
            on_host.copy_(rows, non_blocking=True)
            copied = torch.cuda.Event(blocking=True)  # the thread sleeps; it would spin otherwise
            copied.record(stream)
        copied.synchronize()
        return on_host

    def _of_this_thread(self, rows: Tensor) -> tuple[Any, Tensor]:
        import torch

        least = rows[0].numel() * rows.itemsize
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(rows.device)
            try:
                self._own.pinned = torch.empty(max(PINNED_BYTES, least), dtype=torch.uint8, pin_memory=True)
            except RuntimeError as error:
                _warn_once(f"no memory can be pinned ({error}): hidden states leave the GPU more slowly")
                self._own.pinned = torch.empty(max(PINNED_BYTES, least), dtype=torch.uint8)
        return self._own.stream, self._own.pinned


@cache
def _warn_once(words: str) -> None:
    logger.warning(words)


def _first_error(pieces: Collection[Future[None]]) -> BaseException | None:
    """Wait for all of them."""
    wait(pieces)
    return next((error for piece in pieces if (error := piece.exception()) is not None), None)


def event() -> Any:
    """A CUDA event after all that the current stream has been given so far."""
    import torch

    made = torch.cuda.Event()
    made.record()
    return made
