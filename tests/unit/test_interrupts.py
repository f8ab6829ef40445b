"""Calls to the workers end before an interrupt goes through, and hold nothing afterwards."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import threading
import time
import weakref
from argparse import Namespace
from collections.abc import Iterator

import pytest

from speculators_compat.errors import CaptureError
from speculators_compat.extraction import UninterruptedExecutor, uninterrupted


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


@pytest.mark.usefixtures("sigint")
def test_what_ends_a_program_comes_first() -> None:
    """Else a loop that takes the time-out of a batch would go on after Ctrl-C."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError

    def call() -> None:
        os.kill(os.getpid(), signal.SIGALRM)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGALRM, late)
    try:
        with pytest.raises(KeyboardInterrupt):
            uninterrupted(call)
    finally:
        signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("sigint")
def test_a_handler_that_is_there_for_the_first_time_only() -> None:
    def first(number: int, frame: object) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)

    signal.signal(signal.SIGINT, first)
    uninterrupted(lambda: os.kill(os.getpid(), signal.SIGINT))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("sigint")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_process_forked_meanwhile_can_be_interrupted() -> None:
    def fork() -> int:
        if (child := os.fork()) == 0:
            with contextlib.suppress(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
                os._exit(7)
            os._exit(0)
        return child

    _, status = os.waitpid(uninterrupted(fork), 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_errors_of_workers_hold_no_frames_and_those_of_the_caller_keep_theirs() -> None:
    """vLLM raises a time-out from another error, whose frames hold the executor."""

    class Executor:
        parallel_config = Namespace(world_size=1)

        def execute_model(self) -> None:
            try:
                raise ValueError("the queue is empty")
            except ValueError as error:
                raise TimeoutError("timed out") from error

    with pytest.raises(TimeoutError) as caught:
        try:
            raise KeyError("of the caller")
        except KeyError as handled:
            traceback, kept = handled.__traceback__, handled
            UninterruptedExecutor(Executor()).execute_model()
    assert kept.__traceback__ is traceback
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__traceback__ is None


def test_workers_are_asked_no_more_after_a_call_that_was_broken_off() -> None:
    class Executor:
        def execute_model(self, error: BaseException | None) -> None:
            if error is not None:
                raise error

        parallel_config = Namespace(world_size=1)

    executor = UninterruptedExecutor(Executor())
    with pytest.raises(RuntimeError):
        executor.execute_model(RuntimeError("Worker failed with error"))
    executor.execute_model(None)
    with pytest.raises(KeyboardInterrupt):
        executor.execute_model(KeyboardInterrupt())
    with pytest.raises(CaptureError, match="build a new generator"):
        executor.execute_model(None)


@pytest.mark.usefixtures("sigint")
@pytest.mark.parametrize(("method", "error"), [("fail", ValueError), ("interrupted", KeyboardInterrupt)])
def test_what_a_call_ends_in_keeps_nothing_alive(method: str, error: type[BaseException]) -> None:
    """Else the workers of a generator would outlive its deletion."""

    class Generator:
        def fail(self) -> None:
            raise ValueError("no")

        def interrupted(self) -> None:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.001)

    generator = Generator()
    reference = weakref.ref(generator)
    gc.disable()
    try:
        with contextlib.suppress(error):
            uninterrupted(getattr(generator, method))
        del generator
        assert reference() is None
    finally:
        gc.enable()
