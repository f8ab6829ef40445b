"""Goes through the files of a folder, in several processes if there are many, and reads those that have no record yet."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import threading
from collections.abc import Generator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import NamedTuple

from speculators_compat.verification.record import Record, Stamp

# A new process spends seconds on importing torch; so many small files are read in less.
FILES_PER_PROCESS = 200
# Files that a process is handed at a time: results come, and are recorded, in such portions.
PORTION = 16


class Found(NamedTuple):
    """The `.pt` files below a folder, and the links to folders there, which are not followed: names in natural order."""

    stamps: list[Stamp]
    linked: list[str]


def find(folder: Path) -> Found:
    """All `.pt` files below `folder`, as speculators' trainer finds them.

    Raises:
        OSError: If a folder cannot be read.
    """

    def fail(error: OSError) -> None:
        raise error

    stamps, linked = [], []
    for directory, folders, files in os.walk(folder, onerror=fail):
        stamps += [_stamp(folder, Path(directory, file)) for file in files if file.endswith(".pt")]
        linked += [
            path.relative_to(folder).as_posix() for path in (Path(directory, name) for name in folders) if path.is_symlink()
        ]
    return Found(sorted(stamps, key=lambda stamp: _natural(stamp.name)), sorted(linked, key=_natural))


def _natural(name: str) -> list[int | str]:
    """A key that puts 2 before 10."""
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


def _stamp(folder: Path, path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:  # A link that leads nowhere: unreadable, as reading it will show.
        return Stamp(path.relative_to(folder).as_posix(), 0, 0)
    return Stamp(path.relative_to(folder).as_posix(), found.st_size, found.st_mtime_ns)


def read(folder: Path, stamps: list[Stamp], jobs: int) -> Generator[Record, None, None]:
    """Read files in order, in up to `jobs` processes.

    Raises:
        concurrent.futures.process.BrokenProcessPool: If one of them dies.
    """
    jobs = min(jobs, len(stamps) // FILES_PER_PROCESS)
    if jobs < 2:
        _use_one_core()
        yield from map(partial(_examine, folder), stamps)
        return
    # Spawned, for torch's threads do not survive a fork.
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_prepare_process)
    try:
        yield from pool.map(partial(_examine, folder), stamps, chunksize=PORTION)
    except BaseException:
        # A pool that is interrupted while it starts its processes would never end them, and Python's exit would wait for them.
        # Nor can its own thread be waited for, which may not run yet.
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        pool.shutdown(wait=False, cancel_futures=True)
        raise
    pool.shutdown()


def _prepare_process() -> None:
    for number in (signal.SIGINT, signal.SIGHUP):  # These are for the process that started this one.
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    _use_one_core()


def _end_with_parent() -> None:
    """However that ends: killed, it can end nobody."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _use_one_core() -> None:
    """Tensors are so small that torch's threads would wait for each other most of the time."""
    import torch

    torch.set_num_threads(1)


def _examine(folder: Path, stamp: Stamp) -> Record:
    from speculators_compat.verification.sample import examine

    return examine(folder, stamp)
