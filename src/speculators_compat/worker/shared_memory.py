"""Memory in which a worker writes hidden states and which the caller maps: they are neither pickled nor copied on the way.

It is that of anonymous files (`memfd_create`). No limit on /dev/shm applies to them, which a container may have set to 64 MB,
and they are gone with the last process that maps them, however it ends. The caller opens them through /proc, as a parent may.
The worker writes and does not map: fresh pages cost less that way, and memory that has run out is an error, not a signal.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any

from speculators_compat.errors import CaptureError

if TYPE_CHECKING:
    from torch import Tensor

# Prompts share slabs, since a process can neither open nor map any number of files. As long as one of its prompts is kept, a
# slab is: so it is small, or a small part of all that there is.
SLAB_BYTES = 8 * 2**20
SLAB_SHARE = 32
ALIGNMENT = 64
SAMPLE_BYTES = 64


@dataclass(frozen=True)
class Slab:
    """An anonymous file of a worker, as another process finds it.

    Attributes:
        process: The worker.
        descriptor: The worker's.
        inode: Tells the file from one that has the same descriptor later.
        size: In bytes.
    """

    process: int
    descriptor: int
    inode: int
    size: int

    @classmethod
    def make(cls, size: int) -> Slab:
        """Make a file.

        Raises:
            OSError: If that is not allowed or known here, or there are too many.
        """
        descriptor = _memfd_create()
        try:
            os.ftruncate(descriptor, size)
        except OSError:
            os.close(descriptor)
            raise
        return cls(os.getpid(), descriptor, os.fstat(descriptor).st_ino, size)

    def map(self) -> Any:
        """The file's memory, a buffer of `size` bytes; what is written to it in this process stays in this process.

        Raises:
            OSError: If it is not to be found: its process is on another host, say, or has ended.
        """
        import torch

        with open(f"/proc/{self.process}/fd/{self.descriptor}", "rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_ino != self.inode:
                raise FileNotFoundError(f"{file.name} is not the file that it was")
            path = f"/proc/self/fd/{file.fileno()}"
            try:
                # Python's own mmap would keep a descriptor open for as long as the memory is mapped.
                return torch.from_file(path, shared=False, size=self.size, dtype=torch.uint8).numpy()
            except RuntimeError as error:
                raise OSError(f"{file.name}: {error}") from error


@dataclass(frozen=True)
class Extent:
    """Where in a slab the states of a prompt are, or of neighbours.

    Attributes:
        slab: The slab.
        offset: Where the first layer begins, in bytes.
        layers: How many there are.
        stride: From where one layer begins to where the next does, in bytes; prompts in between have theirs.
        shape: That of each layer, `(tokens, hidden_size)`.
        dtype: Its torch dtype.
    """

    slab: Slab
    offset: int
    layers: int
    stride: int
    shape: tuple[int, ...]
    dtype: Any

    def tensors(self, memory: Any) -> list[Tensor]:
        """The states in the slab's memory, by layer; each tensor has a storage of its own."""
        import torch

        count = prod(self.shape)
        starts = range(self.offset, self.offset + self.layers * self.stride, self.stride)
        return [torch.frombuffer(memory, dtype=self.dtype, count=count, offset=at).view(self.shape) for at in starts]

    def joined(self, other: Extent) -> Extent | None:
        """The two as one, if in every layer the other's rows come right after these."""
        if (other.slab, other.offset, other.stride) != (self.slab, self.offset + self._layer_bytes, self.stride):
            return None
        return replace(self, shape=(self.shape[0] + other.shape[0], *self.shape[1:]))

    def allocate(self) -> None:
        """Get the memory of a group now, in the worker, if it is to be had: what is written later is written faster.

        This is the first of the group, whose layers follow each other without a gap.
        """
        # Not os.posix_fallocate: where that is not supported, libc writes zeros, maybe over what has been written meanwhile.
        if (fallocate := getattr(ctypes.CDLL(None), "fallocate", None)) is not None:
            size = ctypes.c_int64(self.layers * self.stride)
            fallocate(self.slab.descriptor, 0, ctypes.c_int64(self.offset), size)

    def write(self, layer: int, position: int, rows: Tensor) -> None:
        """Write states, in the worker.

        Args:
            layer: Which of the layers.
            position: Token position of the first row.
            rows: A CPU tensor `[rows, hidden_size]` of the extent's dtype.

        Raises:
            CaptureError: If they are not of the extent's dtype or width, or too many.
            OSError: If there is no memory left.
        """
        import torch

        fits = (rows.dtype, rows.shape[1:]) == (self.dtype, self.shape[1:]) and position + len(rows) <= self.shape[0]
        if not fits:
            raise CaptureError(
                f"{tuple(rows.shape)} rows of {rows.dtype} came for position {position} of a prompt whose first were "
                f"{self.shape} of {self.dtype}; expected the same dtype and width in every step"
            )
        left = memoryview(rows.reshape(-1).view(torch.uint8).numpy())
        offset = self.offset + layer * self.stride + position * self._row_bytes
        while left:
            written = os.pwrite(self.slab.descriptor, left, offset)
            left, offset = left[written:], offset + written

    @property
    def _row_bytes(self) -> int:
        return prod(self.shape[1:]) * int(self.dtype.itemsize)

    @property
    def _layer_bytes(self) -> int:
        return self.shape[0] * self._row_bytes


class SharedMemory:
    """Hands out memory of slabs."""

    def __init__(self) -> None:
        self._slabs: list[Slab] = []
        self._used = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="speculators-compat-memory")
        self._closing: Future[None] | None = None

    def sample(self) -> Slab:
        """A slab by which another process can see whether it can map them.

        Raises:
            OSError: If none can be made.
        """
        return self._add(SAMPLE_BYTES)

    def write_sample(self) -> None:
        """Begin it with a byte that is not zero: not everybody who has mapped memory sees what is written to it later."""
        for slab in self._slabs:  # there is no other yet, or none at all
            os.pwrite(slab.descriptor, b"\x01", 0)

    def empty(self, layers: int, tokens: Sequence[int], row: Sequence[int], dtype: Any) -> list[list[Extent]]:
        """Memory for the states of prompts.

        Args:
            layers: How many.
            tokens: Of each prompt.
            row: Shape of one token's state, `(hidden_size,)`.
            dtype: Its torch dtype.

        Returns:
            One extent for each prompt, in groups that lie side by side, layer by layer: a large prompt is one by itself.

        Raises:
            OSError: If no more can be had.
        """
        row_bytes = prod(row) * dtype.itemsize
        groups = []
        for counts in _groups(tokens, SLAB_BYTES // (layers * row_bytes)):
            stride = sum(counts) * row_bytes
            slab, start = self._room(layers * stride)
            offsets = accumulate(counts[:-1], lambda offset, count: offset + count * row_bytes, initial=start)
            groups.append([Extent(slab, at, layers, stride, (n, *row), dtype) for at, n in zip(offsets, counts, strict=True)])
        return groups

    def close(self) -> None:
        """Let go of the slabs; processes that have mapped them keep them.

        The last to let go frees the memory, which takes 0.1 s for a few gigabytes, so that is done in a thread.
        """
        if self._closing is not None:
            self._closing.result()
        slabs, self._slabs = self._slabs, []
        try:
            self._closing = self._thread.submit(_close, slabs)
        except RuntimeError:  # no more threads can be had
            _close(slabs)

    def _room(self, size: int) -> tuple[Slab, int]:
        """A slab that has so many bytes left, and where they begin."""
        if not self._slabs or self._used + size > self._slabs[-1].size:
            self._add(max(size, SLAB_BYTES, sum(slab.size for slab in self._slabs) // SLAB_SHARE))
        start = self._used
        self._used += -(-size // ALIGNMENT) * ALIGNMENT
        return self._slabs[-1], start

    def _add(self, size: int) -> Slab:
        self._slabs.append(Slab.make(size))
        self._used = 0
        return self._slabs[-1]


def _groups(counts: Sequence[int], limit: int) -> Iterator[list[int]]:
    """Counts in their order, as many together as come to no more than the limit, and at least one."""
    group: list[int] = []
    for count in counts:
        if group and sum(group) + count > limit:
            yield group
            group = []
        group.append(count)
    if group:
        yield group


def _close(slabs: list[Slab]) -> None:
    while slabs:  # never twice: it might be queued, although it is said that it could not be
        os.close(slabs.pop().descriptor)


def _memfd_create() -> int:
    name = "speculators_compat"
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    # Pythons that were built with an old glibc lack it, whatever the glibc that they run with.
    try:
        create = ctypes.CDLL(None, use_errno=True).memfd_create
    except AttributeError as error:
        raise OSError(errno.ENOSYS, "there is no memfd_create") from error
    descriptor: int = create(name.encode(), 1)  # MFD_CLOEXEC
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor
