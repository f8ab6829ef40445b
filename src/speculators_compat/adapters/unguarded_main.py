"""Spawned workers run the user's script again, unless it is guarded; upstream's users were used to forked ones."""

from __future__ import annotations

import ast
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

from speculators_compat.adapter import Adapter, Finding, executor


def with_main_hidden(wrapped: Callable[..., Any], instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Start the workers without the script, if running it in them would build the generator once more."""
    main = sys.modules["__main__"]
    if not _would_run_again(main):
        return wrapped(*args, **kwargs)
    with _hidden(main):
        return wrapped(*args, **kwargs)


def _would_run_again(main: ModuleType) -> bool:
    """Whether the statement of the main module that the main thread is in is not under an `if __name__ == ...`."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None and not (frame.f_globals is vars(main) and frame.f_code.co_name == "<module>"):
        frame = frame.f_back
    path = getattr(main, "__file__", None)
    if frame is None or path is None:
        return False
    try:
        statements = ast.parse(Path(path).read_bytes()).body
    except (OSError, SyntaxError, ValueError):  # a compiled script, or one in an archive
        return False
    for statement in statements:
        if statement.lineno <= frame.f_lineno <= (statement.end_lineno or statement.lineno):
            return not (isinstance(statement, ast.If) and "__name__" in ast.unparse(statement.test))
    return False


@contextmanager
def _hidden(main: ModuleType) -> Iterator[None]:
    """Take away what `multiprocessing.spawn.get_preparation_data` tells a child about the main module."""
    kept: dict[str, Any] = {name: vars(main).pop(name) for name in ("__file__", "__spec__") if name in vars(main)}
    main.__spec__ = None
    try:
        yield
    finally:
        vars(main).update(kept)


def probe() -> Finding:
    import multiprocessing.spawn as spawn

    if not hasattr(spawn, "get_preparation_data"):
        return Finding.intact("this Python prepares spawned processes in another way")
    return Finding.broken("spawned processes import the main module")


ADAPTER = Adapter(
    name="unguarded_main",
    contract="A script without an `if __name__ == '__main__'` guard can build a generator.",
    symptom="RuntimeError: An attempt has been made to start a new process before the current process has finished "
    "its bootstrapping phase",
    vllm=">=0.11.0",
    speculators="<0.5.0",
    broken_by="vllm/utils/system_utils.py: workers are spawned wherever CUDA is live in the caller, and on CPUs",
    removable_when="vLLM's workers no longer import the caller's main module",
    probe=probe,
    patches=(executor(with_main_hidden),),
)
