"""What only shows between files, found in their records: no file is read again.

A state is determined by the tokens up to it, so files that begin with the same tokens have the same states there, and files
that begin with others have others. Most conversations share a system prompt, and all share the first tokens of a template.

Where files disagree, the majority is taken to be right, and files that are already known to be bad are not heard. Where there
is no majority, all are named, and the message says so.
"""

from __future__ import annotations

from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import attrgetter, itemgetter
from statistics import median
from typing import NamedTuple

from speculators_compat.verification.record import CAUSES, HEADER, Fault, Record, Summary, positions

# Distance of two states' directions. docs/correctness.md: rounding to bfloat16 puts states up to 0.04 off the right ones, hence
# two of them up to 0.08 apart, and FP8 up to 0.13 off; states of other tokens, or behind a wrong cut, are 0.45 to 1.4 off.
TOLERANCE = 0.25

# From how many files on the folder says what is usual.
ENOUGH_FILES = 10
# Rows are taken not to belong to their tokens where they resemble each other less than this share of what is usual. Measured on
# 54 windows of source code, 96 rows each, on a model of 6 layers: 0.68 to 1.1 for their own states, -0.07 to 0.18 for each
# other's; before any training 0.23 to 0.49 and -0.14 to 0.18. States one row off have half of what is usual, and pass.
UNRELATED_SHARE = 0.25
# Below this, what is usual is too near to what chance makes.
RELATED = 0.1
# Share of the files whose loss masks turn on after the same tokens, from which on these are taken for the assistant's header.
SAME_OPENER = 0.8


class Unjudged(NamedTuple):
    """Files that were not looked at for a kind of fault, and why not."""

    kind: str
    why: str
    files: int


class Place(NamedTuple):
    """A position of a file whose fingerprints are known; `tokens` is how many there are up to and including it."""

    name: str
    tokens: int
    prefix: str
    rows: str
    directions: str


class Findings:
    """The faults of a folder, by file.

    Args:
        records: Those of every file that is there now.
        tolerance: Largest distance of two states' directions that counts as rounding.

    Attributes:
        unjudged: What could not be looked for, in how many of the files that had no fault until then.
    """

    def __init__(self, records: Iterable[Record], tolerance: float = TOLERANCE) -> None:
        self._faults: dict[str, list[Fault]] = defaultdict(list)
        self._summaries: dict[str, Summary] = {}
        self.unjudged: list[Unjudged] = []
        for record in records:
            if record.faults:
                self._faults[record.stamp.name].extend(record.faults)
            elif record.summary is not None:
                self._summaries[record.stamp.name] = record.summary
        self._compare_formats()
        places = [place for name, summary in self.good().items() for place in _places(name, summary)]
        self._compare_token_correlations()
        self._compare_openers()
        self._compare_states_of_same_tokens(places, tolerance)
        self._compare_tokens_of_same_states(places)

    def by_file(self) -> dict[str, list[Fault]]:
        """The faults of each bad file, the plainest first; files in the order of their plainest."""
        rank = {kind: index for index, kind in enumerate(CAUSES)}
        ordered = {name: sorted(faults, key=lambda fault: rank[fault.kind]) for name, faults in self._faults.items()}
        return dict(sorted(ordered.items(), key=lambda item: rank[item[1][0].kind]))

    def good(self) -> dict[str, Summary]:
        """The summaries of files in which nothing is wrong, by name."""
        return {name: summary for name, summary in self._summaries.items() if name not in self._faults}

    def _add(self, name: str, kind: str, message: str) -> None:
        if all(fault.kind != kind for fault in self._faults[name]):
            self._faults[name].append(Fault(kind, message))

    def _not_judged(self, kind: str, why: str, files: int) -> None:
        if files:
            self.unjudged.append(Unjudged(kind, why, files))

    def _compare_formats(self) -> None:
        for field in ("layers", "hidden_size", "dtype", "masked"):
            values = {name: getattr(summary, field) for name, summary in self.good().items()}
            for usual, count in Counter(values.values()).most_common(1):
                for name in (name for name, value in values.items() if value != usual):
                    message = f"{field} is {values[name]}; expected {usual}, as in {count} of {len(values)} files"
                    self._add(name, "format", message)

    def _compare_token_correlations(self) -> None:
        """Files in which rows of one token do not resemble each other, in the layer where they usually do most."""
        good = self.good()
        judged = {name: summary.by_token for name, summary in good.items() if summary.by_token}
        self._not_judged("wrong tokens", "too few repeated tokens", len(good) - len(judged))
        if len(judged) < ENOUGH_FILES:
            self._not_judged("wrong tokens", f"fewer than {ENOUGH_FILES} files to compare", len(judged))
            return
        layer, usual = max(enumerate(map(median, zip(*judged.values(), strict=True))), key=lambda item: item[1])
        if usual < RELATED:
            self._not_judged("wrong tokens", f"rows of the same token correlate by only {usual:.2f} here", len(judged))
            return
        for name, found in judged.items():
            if found[layer] < UNRELATED_SHARE * usual:
                message = f"rows of the same token correlate by {found[layer]:.2f} in layer {layer}; {usual:.2f} is usual here"
                self._add(name, "wrong tokens", message)

    def _compare_openers(self) -> None:
        """Files whose loss mask never turns on after the assistant's header, though they have one.

        Where a reply begins with what the header ends with (newlines), a tokenizer may make one token of both: the mask then
        rightly turns on one token earlier.
        """
        good = self.good()
        judged = {name: summary for name, summary in good.items() if summary.openers}
        self._not_judged("wrong mask", "loss_mask never turns on, or there is none", len(good) - len(judged))
        if len(judged) < ENOUGH_FILES:
            self._not_judged("wrong mask", f"fewer than {ENOUGH_FILES} files to compare", len(judged))
            return
        header, count = _common_header([summary.openers for summary in judged.values()])
        if not header:
            self._not_judged("wrong mask", "loss masks turn on after various tokens", len(judged))
            return
        others = {name: summary for name, summary in judged.items() if header[-1] not in map(itemgetter(-1), summary.openers)}
        unmerged = {
            name: found for name, found in others.items() if not any(_ends(opener, header[:-1]) for opener in found.openers)
        }
        wrong = {name: found for name, found in unmerged.items() if found.holds(header)}
        self._not_judged("wrong mask", "without the tokens after which loss masks usually turn on", len(unmerged) - len(wrong))
        for name, found in wrong.items():
            where = f"after token {found.openers[0][-1]}, never after {header[-1]}"
            self._add(name, "wrong mask", f"loss_mask turns on {where} as in {count} of {len(judged)} files")

    def _compare_states_of_same_tokens(self, places: list[Place], tolerance: float) -> None:
        """States that differ though the tokens are the same. Large groups first, for they have clear majorities."""
        for group in sorted(_grouped(places, "prefix"), key=len, reverse=True):
            heard = [place for place in group if place.name not in self._faults]
            if len(heard) < 2:
                continue
            distances = _distances(heard)
            differing = {place.name: distance for place, distance in zip(heard, distances, strict=True) if distance > tolerance}
            if not differing:
                continue
            where = f"at the end of the same {heard[0].tokens} tokens"
            largest = max(distances)
            if 2 * len(differing) < len(heard):
                for name, distance in differing.items():
                    message = f"states are {distance:.2f} off those of {len(heard) - len(differing)} files {where}"
                    self._add(name, "differing states", message)
            else:
                for place in heard:
                    others = listed([other.name for other in heard if other is not place])
                    message = f"states here or in {others} are wrong: up to {largest:.2f} apart {where}"
                    self._add(place.name, "differing states", message)

    def _compare_tokens_of_same_states(self, places: list[Place]) -> None:
        """States that are equal to the last bit, in every layer, though the tokens up to them differ."""
        for group in _grouped(places, "rows"):
            if len({place.prefix for place in group}) == 1:
                continue
            claims = Counter(place.prefix for place in group if place.name not in self._faults).most_common(2)
            owner = claims[0][0] if claims and (len(claims) == 1 or claims[0][1] > claims[1][1]) else None
            for place in group:
                if place.prefix != owner:
                    others = listed([other.name for other in group if other.prefix != place.prefix])
                    doubt = "" if owner else "; one of them is wrong"
                    message = f"states after {place.tokens} tokens equal those of {others}, whose tokens differ{doubt}"
                    self._add(place.name, "same states", message)


def _common_header(openers: list[list[list[int]]]) -> tuple[tuple[int, ...], int]:
    """The most tokens, up to `HEADER`, after which the loss masks of enough files turn on, and of how many; or none."""
    header: tuple[int, ...] = ()
    files = 0
    for length in range(1, HEADER + 1):
        ends = Counter(
            end
            for of_file in openers
            for end in {tuple(opener[-length:]) for opener in of_file}
            if len(end) == length and end[1:] == header
        )
        longer, count = max(ends.items(), key=itemgetter(1), default=((), 0))
        if count < SAME_OPENER * len(openers):
            break
        header, files = longer, files or count
    return header, files


def _ends(opener: list[int], tokens: tuple[int, ...]) -> bool:
    return bool(tokens) and tuple(opener[-len(tokens) :]) == tokens


def _places(name: str, summary: Summary) -> Iterator[Place]:
    for position, *fingerprints in zip(
        positions(summary.tokens), summary.prefixes, summary.rows, summary.directions, strict=True
    ):
        yield Place(name, position + 1, *fingerprints)


def _grouped(places: list[Place], fingerprint: str) -> list[list[Place]]:
    """Places after equally many tokens that have a fingerprint in common, if there are two or more; short prefixes first."""
    key = attrgetter("tokens", fingerprint)
    groups = (list(group) for _, group in groupby(sorted(places, key=key), key))
    return [group for group in groups if len(group) > 1]


def _distances(places: list[Place]) -> list[float]:
    """How far the states of each place are off the median of all, or of two off the first: the largest of all layers."""
    import torch

    from speculators_compat.verification.sample import SKETCH, SKETCH_SCALE

    levels = bytearray(b"".join(b64decode(place.directions) for place in places))
    sketches = torch.frombuffer(levels, dtype=torch.int8).view(len(places), -1, SKETCH).float() / SKETCH_SCALE
    middle = sketches.median(dim=0).values if len(places) > 2 else sketches[0]
    distances: list[float] = (sketches - middle).square().mean(dim=-1).sqrt().amax(dim=-1).tolist()
    return distances


def listed(names: list[str], limit: int = 2) -> str:
    """The first of some names, and how many more there are."""
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")
