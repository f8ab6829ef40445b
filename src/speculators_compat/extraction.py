"""What the adapters in the caller's process share: which generator is being built or used, and safe calls to its workers."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, TypeVar

from speculators_compat.activation import reseat
from speculators_compat.adapter import generator_global, generator_method
from speculators_compat.errors import CaptureError
from speculators_compat.patching import Proxy, proxied
from speculators_compat.progress import Progress

logger = logging.getLogger("speculators_compat")
T = TypeVar("T")
Handler = Callable[[int, "FrameType | None"], Any]

# Signals whose handlers people let raise.
INTERRUPTS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


@dataclass
class Extraction:
    """One call of a generator's `__init__` or `generate`.

    Attributes:
        generator: The instance of `VllmHiddenStatesGenerator`.
        prompt_lengths: Tokens of each prompt by request id, in input order; filled as requests are submitted.
        progress: Counts the tokens of this call.
        stop: Set when the caller has been interrupted: no further step is to be started.
        building: Whether it is a call of `__init__`.
    """

    generator: Any
    prompt_lengths: dict[str, int] = field(default_factory=dict)
    progress: Progress = field(default_factory=Progress)
    stop: bool = False
    building: bool = False


_current: ContextVar[Extraction | None] = ContextVar("speculators_compat_extraction", default=None)
_locks: weakref.WeakKeyDictionary[Any, threading.RLock] = weakref.WeakKeyDictionary()


def current() -> Extraction | None:
    """The extraction that the calling code is part of, if any."""
    return _current.get()


@contextmanager
def _extraction(generator: Any, building: bool = False) -> Iterator[Extraction]:
    reseat()
    token = _current.set(Extraction(generator, building=building))
    try:
        yield _current.get()  # type: ignore[misc]
    finally:
        _current.reset(token)


def uninterrupted(call: Callable[[], T]) -> T:
    """Run `call` to its end even if the caller is interrupted meanwhile; then let the interrupt through.

    A `KeyboardInterrupt` in the middle of a call to the workers would leave its reply in the queue, to be taken for the
    reply to the next call. Handlers of signals run in the main thread as ever, but what they raise is kept.
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    raised: list[BaseException] = []
    try:
        with _keeping_what_handlers_raise(raised):
            return call()
    finally:
        # What ends a program comes before what an `except Exception` takes.
        raised.sort(key=lambda interrupt: isinstance(interrupt, Exception))
        del raised[1:]
        if raised:
            raise raised.pop()  # not from a variable: it would hold this frame, which holds it, and the generator with them


@contextmanager
def _keeping_what_handlers_raise(raised: list[BaseException]) -> Iterator[None]:
    process, ended = os.getpid(), False

    def keeping(handler: Handler) -> Handler:
        def handle(number: int, frame: FrameType | None) -> None:
            if ended or os.getpid() != process:  # left behind by another interrupt, or in a fork of this process
                handler(number, frame)
                return
            try:
                handler(number, frame)
            except BaseException as interrupt:  # noqa: BLE001 - raised when the call has ended, however often it comes
                interrupt.__context__ = None
                raised.append(interrupt.with_traceback(None))
                if (extraction := current()) is not None:
                    extraction.stop = True
                with suppress(Exception):  # whatever users log with
                    logger.warning("interrupted: waiting for the step that the workers are running to end")

        return handle

    handlers = {number: handler for number in INTERRUPTS if callable(handler := signal.getsignal(number))}
    ours = {number: keeping(handler) for number, handler in handlers.items()}
    try:
        for number, handler in ours.items():
            signal.signal(number, handler)
        yield
    finally:
        try:
            for number, handler in reversed(handlers.items()):
                if signal.getsignal(number) is ours[number]:  # a handler may have put another in its place
                    signal.signal(number, handler)
        finally:
            ended = True


class UninterruptedExecutor(Proxy):
    """An executor whose calls to the workers always read the reply that belongs to them, and whose errors hold nothing.

    vLLM's future holds the error of a call, and the error's traceback the future and the executor. Where the garbage collector
    finds that cycle, it closes ZMQ contexts before their sockets, and waits for ever. So vLLM's part of the traceback is cut.

    Workers whose call has failed may be out of step: a reply that comes late is taken for that to the next call, and of several
    ranks one has said that it failed, while others have more to say, or wait for it within the model. They are asked no more.
    """

    _self_out_of_step = ""

    def collective_rpc(self, *args: Any, **kwargs: Any) -> Any:
        def ask() -> Any:
            return self._self_ask(lambda: self.__wrapped__.collective_rpc(*args, **kwargs))

        # Of a generator that is not built, nobody will read a reply, and the workers may wait for each other.
        return ask() if (extraction := current()) is not None and extraction.building else uninterrupted(ask)

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_ask(lambda: self.__wrapped__.execute_model(*args, **kwargs))

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_ask(lambda: self.__wrapped__.sample_tokens(*args, **kwargs))

    def initialize_from_config(self, *args: Any, **kwargs: Any) -> Any:
        return self._self_ask(lambda: self.__wrapped__.initialize_from_config(*args, **kwargs))

    def _self_ask(self, call: Callable[[], T]) -> T:
        """Call the workers.

        Raises:
            CaptureError: If they may be out of step.
        """
        if self._self_out_of_step:
            raise CaptureError(
                f"workers may be out of step since a call to them failed ({self._self_out_of_step}): build a new generator"
            )
        handled = sys.exc_info()[1]  # by the caller, whose it is
        try:
            return call()
        except BaseException as error:
            logger.debug("a call to the workers failed", exc_info=True)
            answered = isinstance(error, Exception) and not isinstance(error, TimeoutError)
            if not answered or self.__wrapped__.parallel_config.world_size > 1:
                self._self_out_of_step = f"{type(error).__name__}: {error}"
            _cut_tracebacks(error, handled)
            raise error


def _cut_tracebacks(error: BaseException | None, end: BaseException | None) -> None:
    """Those of an error and of what has led to it, up to `end`."""
    while error is not None and error is not end:
        error.__traceback__ = None
        error = error.__cause__ or error.__context__


class SubmissionRecorder(Proxy):
    """A scheduler that notes which requests the running extraction consists of."""

    def add_request(self, request: Any) -> None:
        if (extraction := current()) is not None:
            extraction.prompt_lengths[request.request_id] = request.num_prompt_tokens
        self.__wrapped__.add_request(request)


def _build(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    with _extraction(instance, building=True):
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
