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

from speculators_compat.extraction import _other_thread, uninterrupted


def test_values_and_errors_come_through() -> None:
    assert uninterrupted(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        uninterrupted(lambda: 1 // 0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_has_a_thread_of_its_own() -> None:
    """The parent's is not there, and would be waited for."""
    uninterrupted(lambda: None)
    if (child := os.fork()) == 0:
        signal.alarm(20)
        os._exit(uninterrupted(lambda: 7))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_a_call_that_no_thread_could_take_does_not_run_before_a_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    _other_thread.cache_clear()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(RuntimeError, match="new thread"):
            uninterrupted(lambda: ran.append("first"))
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    uninterrupted(lambda: ran.append("second"))
    assert ran == ["second"]


def test_two_interrupts_wait_for_the_call() -> None:
    ended: list[bool] = []

    def call() -> None:
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.2)
        ended.append(True)

    # A test run in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(call)
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended


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
