"""Calls to the workers end before an interrupt goes through, and hold nothing afterwards."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
import weakref
from collections.abc import Iterator

import pytest

from speculators_compat.extraction import uninterrupted


def test_values_and_errors_come_through() -> None:
    assert uninterrupted(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 // 0)


@pytest.fixture
def sigint() -> Iterator[None]:
    """A test run in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint")
@pytest.mark.parametrize("pause", [0, 0.0001, 0.2])
def test_interrupts_wait_for_the_call(pause: float) -> None:
    ended: list[bool] = []

    def call() -> None:
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(pause)
        ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(call)
    assert ended


def test_an_interrupt_may_come_at_any_time() -> None:
    begun, ended, interrupts, over, armed = 0, 0, 0, False, False

    def handler(number: int, frame: object) -> None:
        nonlocal armed
        if armed:
            armed = False
            raise KeyboardInterrupt

    def call() -> None:
        nonlocal begun, ended
        begun += 1
        time.sleep(0.0005)
        ended += 1

    def interrupt() -> None:
        while not over:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.0003)

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, handler)
    try:
        thread.start()
        deadline = time.monotonic() + 1
        while time.monotonic() < deadline:
            try:
                armed = True
                uninterrupted(call)
                armed = False
            except KeyboardInterrupt:
                interrupts += 1
            assert begun == ended
            assert signal.getsignal(signal.SIGINT) is handler
    finally:
        over = True
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert interrupts


@pytest.mark.usefixtures("sigint")
def test_a_handler_runs_at_once_and_what_it_raises_comes_later() -> None:
    seen: list[str] = []

    def handler(number: int, frame: object) -> None:
        seen.append("handler")
        raise SystemExit(143)

    def call() -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        seen.append("call")
        raise ValueError("and the call fails")

    before = signal.signal(signal.SIGTERM, handler)
    try:
        with pytest.raises(SystemExit):
            uninterrupted(call)
        assert signal.getsignal(signal.SIGTERM) is handler
    finally:
        signal.signal(signal.SIGTERM, before)
    assert seen == ["handler", "call"]


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
