"""Calls to the workers end before an interrupt goes through, and hold nothing afterwards."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
import weakref

import pytest

from speculators_compat.extraction import uninterrupted


def test_values_and_errors_come_through() -> None:
    assert uninterrupted(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 // 0)


def test_two_interrupts_wait_for_the_call() -> None:
    ended: list[float] = []

    def call() -> None:
        time.sleep(0.5)
        ended.append(time.monotonic())

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timers = [threading.Timer(delay, lambda: os.kill(os.getpid(), signal.SIGINT)) for delay in (0.1, 0.25)]
    try:
        for timer in timers:
            timer.start()
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(call)
        assert ended
    finally:
        for timer in timers:
            timer.join()
        signal.signal(signal.SIGINT, before)


def test_a_failed_call_keeps_nothing_alive() -> None:
    """Else the workers of a generator would outlive its deletion."""

    class Generator:
        def fail(self) -> None:
            raise ValueError("no")

    generator = Generator()
    reference = weakref.ref(generator)
    gc.disable()
    try:
        with contextlib.suppress(ValueError):
            uninterrupted(generator.fail)
        del generator
        assert reference() is None
    finally:
        gc.enable()
