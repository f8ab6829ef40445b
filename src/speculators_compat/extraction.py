"""What the adapters in the caller's process share: which generator is being built or used, and safe calls to its workers."""

from __future__ import annotations

import contextvars
import logging
import os
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from typing import Any, TypeVar

from speculators_compat.activation import reseat
from speculators_compat.adapter import generator_global, generator_method
from speculators_compat.patching import Proxy, proxied
from speculators_compat.progress import Progress

logger = logging.getLogger("speculators_compat")
T = TypeVar("T")


@dataclass
class Extraction:
    """One call of a generator's `__init__` or `generate`.

    Attributes:
        generator: The instance of `VllmHiddenStatesGenerator`.
        prompt_lengths: Tokens of each prompt by request id, in input order; filled as requests are submitted.
        progress: Counts the tokens of this call.
        stop: Set when the caller has been interrupted: no further step is to be started.
    """

    generator: Any
    prompt_lengths: dict[str, int] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    stop: threading.Event = field(default_factory=threading.Event)


_current: ContextVar[Extraction | None] = ContextVar("speculators_compat_extraction", default=None)
_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()


def current() -> Extraction | None:
    """The extraction that the calling code is part of, if any."""
    return _current.get()


@contextmanager
def _extraction(generator: Any) -> Iterator[Extraction]:
    reseat()
    token = _current.set(Extraction(generator))
    try:
        yield _current.get()  # type: ignore[misc]
    finally:
        _current.reset(token)


def uninterrupted(call: Callable[[], T]) -> T:
    """Run `call` to its end even if the caller is interrupted meanwhile; then let the interrupt through.

    A `KeyboardInterrupt` in the middle of a call to the workers would leave its reply in the queue, to be taken for the
    reply to the next call. Signals only ever reach the main thread, so the call runs in another one.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    interrupts: list[BaseException] = []
    # Not the future's own wait: an interrupt in the middle of it may leave the future locked.
    ended = threading.Event()
    context = contextvars.copy_context()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    other_thread = _other_thread(os.getpid())
    try:
        result = other_thread.submit(context.run, call)
    except RuntimeError:  # no thread can be had; the call is queued, and is not to run before a later one
        other_thread.shutdown(cancel_futures=True)
        _other_thread.cache_clear()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        raise
    result.add_done_callback(lambda future: ended.set())
    while True:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            ended.wait()
            break
        except BaseException as interrupt:  # noqa: BLE001 - raised when the call has ended, however often it comes
            interrupts.append(interrupt)
            if (extraction := current()) is not None:
                extraction.stop.set()
            logger.warning("interrupted: waiting for the step that the workers are running to end")
    try:
        if interrupts:
            raise interrupts[0]
        return result.result()
    finally:
        # An exception must not be held by a frame that it holds itself: the generator would outlive its deletion.
        interrupts.clear()
        del result


@cache
def _other_thread(process: int) -> ThreadPoolExecutor:
    """The thread of a process; to start one for each call takes longer than the call."""
    return ThreadPoolExecutor(1, thread_name_prefix="speculators-compat")


class UninterruptedExecutor(Proxy):
    """An executor whose calls to the workers always read the reply that belongs to them, and whose errors hold nothing.

    vLLM's future holds the error of a call, and the error's traceback the future and the executor. Where the garbage collector
    finds that cycle, it closes ZMQ contexts before their sockets, and waits for ever. So vLLM's part of the traceback is cut.
    """

    def collective_rpc(self, *args: Any, **kwargs: Any) -> Any:
        return _cutting_the_traceback(lambda: uninterrupted(lambda: self.__wrapped__.collective_rpc(*args, **kwargs)))

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        return _cutting_the_traceback(lambda: self.__wrapped__.execute_model(*args, **kwargs))

    def initialize_from_config(self, *args: Any, **kwargs: Any) -> Any:
        return _cutting_the_traceback(lambda: self.__wrapped__.initialize_from_config(*args, **kwargs))


def _cutting_the_traceback(call: Callable[[], T]) -> T:
    try:
        return call()
    except Exception as error:
        logger.debug("a call to the workers failed", exc_info=True)
        raise error.with_traceback(None)  # noqa: B904 - the same error


class SubmissionRecorder(Proxy):
    """A scheduler that notes which requests the running extraction consists of."""

    def add_request(self, request: Any) -> None:
        if (extraction := current()) is not None:
            extraction.prompt_lengths[request.request_id] = request.num_prompt_tokens
        self.__wrapped__.add_request(request)


def _build(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _extraction(instance):
        return wrapped(*args, **kwargs)


def _generate(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _locks.setdefault(instance, threading.RLock()), _extraction(instance) as extraction, extraction.progress:
        return wrapped(*args, **kwargs)


def _make_executor(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return proxied(wrapped(*args, **kwargs), UninterruptedExecutor)


def _make_scheduler(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return proxied(wrapped(*args, **kwargs), SubmissionRecorder)


CORE_PATCHES = (
    generator_method("__init__", _build),
    generator_method("generate", _generate),
    generator_global("MultiprocExecutor", _make_executor),
    generator_global("Scheduler", _make_scheduler),
)
