"""Ends a command that is terminated as Ctrl-C ends it: with what it has started ended, and what it has written removed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def terminating() -> Iterator[None]:
    """Raise SystemExit(128 + number) at SIGTERM and SIGHUP, in the main thread; one that is ignored (nohup) stays ignored."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    heeded = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heeded}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
