"""What is kept of each file, and the results file that keeps it, so that no file is read twice."""

from __future__ import annotations

import json
import os
import zlib
from array import array
from base64 import b64decode
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import IO, Any, NamedTuple

# Goes up when records come to mean something else; those of another format are not read.
FORMAT = 2
# How many tokens are kept of those after which a loss mask turns on: the end of an assistant's header.
HEADER = 3


class Stamp(NamedTuple):
    """A file as it was when it was read; `name` is relative to the folder, with slashes."""

    name: str
    size: int
    mtime_ns: int


class Fault(NamedTuple):
    """Something that is wrong with a file: a key of `CAUSES`, and what was found and expected."""

    kind: str
    message: str


# From the plainest to the most inferred, which is the order in which they are told, each with what usually lies behind it.
CAUSES = {
    "unreadable": "writing was cut short: killed, or the disk was full; or the file is from something else",
    "format": "not as speculators' script writes it, or from another run: other layers, another model",
    "lengths": "short states: prefix caching; a short loss_mask: results out of order (speculators 0.4, more than 10 prompts "
    "in a batch), and then masks of files that are not named may be other files' too, cut to fit",
    "not finite": "overflow in the model, or memory that was never written",
    "zero rows": "rows that were never written: tokens that did not pass through the layers",
    "repeated rows": "rows of one chunk returned for another, or computed without what stands before them",
    "repeated layers": "one layer's states returned for several",
    "wrong tokens": "states of another prompt, or shifted rows: results or requests of a batch were mixed up",
    "wrong mask": "loss_mask of another prompt: results out of order (speculators 0.4, more than 10 prompts in a batch)",
    "differing states": "states of another prompt, a prompt that was cut into chunks wrongly, or another model",
    "same states": "one prompt's states returned for two",
}


def positions(tokens: int) -> list[int]:
    """The positions of a sample's fingerprints: the last of the first 1, 2, 4, 8, ... tokens, and the last of all."""
    return sorted({2**power - 1 for power in range(tokens.bit_length())} | {tokens - 1})


@dataclass(frozen=True)
class Summary:
    """What comparisons need of a sample in which nothing is wrong by itself. Lists by position follow `positions(tokens)`.

    Attributes:
        tokens: Number of tokens.
        layers: Number of layers.
        hidden_size: Elements of a state.
        dtype: Of the states, as torch prints it without `torch.`.
        masked: Whether it has a loss mask.
        openers: The `HEADER` token ids, fewer at the beginning, after which the loss mask turns on, each once.
        distinct: The token ids that another token follows (`sample.packed`).
        norms: Minimum, quartiles and maximum of the rows' norms, by layer; without the first row, which is an attention sink
            in most models and many times longer. Empty if there is no other.
        by_token: How much rows of one token resemble each other, by layer (`sample.token_correlation`); empty if unknown.
        prefixes: Hash of the token ids up to and including each position.
        rows: Hash of the rows of all layers at each position: equal only for equal bits.
        directions: Sketch of each of these rows, base64 of int8 `[layers, SKETCH]`.
    """

    tokens: int
    layers: int
    hidden_size: int
    dtype: str
    masked: bool
    openers: list[list[int]]
    distinct: str
    norms: list[list[float]]
    by_token: list[float]
    prefixes: list[str]
    rows: list[str]
    directions: list[str]

    def holds(self, ids: Iterable[int]) -> bool:
        """Whether each of some token ids occurs, with another token behind it."""
        differences = array("q", zlib.decompress(b64decode(self.distinct)))
        return set(ids) <= set(accumulate(differences))


@dataclass(frozen=True)
class Record:
    """What reading one file has shown: faults, or a summary, or neither if it is no sample."""

    stamp: Stamp
    faults: tuple[Fault, ...] = ()
    summary: Summary | None = None

    @property
    def skipped(self) -> bool:
        """Whether the file is no sample."""
        return not self.faults and self.summary is None

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps({"format": FORMAT, **asdict(self)}, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> Record | None:
        """The record on a line, or None if it is torn or of another format."""
        try:
            fields: dict[str, Any] = json.loads(line)
            if fields["format"] != FORMAT:
                return None
            summary = fields["summary"]
            return cls(
                Stamp(*fields["stamp"]),
                tuple(Fault(*fault) for fault in fields["faults"]),
                None if summary is None else Summary(**summary),
            )
        except (ValueError, KeyError, TypeError):
            return None


def load(path: Path) -> dict[Stamp, Record]:
    """The records of earlier runs; of a file that was recorded twice, the later one."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", errors="replace") as lines:
        return {record.stamp: record for record in map(Record.from_json, lines) if record is not None}


class Journal:
    """A results file that is appended to: killed at any time, it loses the line that was being written.

    Files that cannot be read are not recorded, for that may pass; they are read again next time.
    """

    def __init__(self, path: Path) -> None:
        self._file: IO[bytes] = path.open("ab+")
        if self._file.tell() > 0:
            self._file.seek(-1, os.SEEK_END)
            if self._file.read(1) != b"\n":  # The last line is torn: the next must not go on with it.
                self._file.write(b"\n")

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self._file.close()

    def keeping(self, records: Iterator[Record]) -> Iterator[Record]:
        """Pass records on, each written down first."""
        for record in records:
            if not any(fault.kind == "unreadable" for fault in record.faults):
                self._file.write(f"{record.to_json()}\n".encode())
                self._file.flush()
            yield record
