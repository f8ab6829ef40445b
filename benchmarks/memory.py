"""How much memory of the host is in use, over time."""

from __future__ import annotations

import threading
import time
from pathlib import Path

INTERVAL = 0.005
STEADY = 4 * 2**20


def settle() -> None:
    """Wait, up to 6 s, until the operating system has freed what nobody has any more: until as much is in use as 0.3 s ago."""
    for _ in range(20):
        before = _available()
        time.sleep(0.3)
        if abs(_available() - before) < STEADY:
            return


class Watch:
    """Watches, while it is entered, what the whole machine has in use: what processes share is counted once.

    Attributes:
        rise: By how many bytes it rose, at most.
    """

    def __init__(self) -> None:
        self.rise = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Watch:
        self._before = _available()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._look()
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(INTERVAL):
            self._look()

    def _look(self) -> None:
        self.rise = max(self.rise, self._before - _available())


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise LookupError("/proc/meminfo has no MemAvailable")
