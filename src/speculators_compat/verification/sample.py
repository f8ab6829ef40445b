"""Reads one file: what is wrong with it by itself, and a summary of a few hundred bytes per layer for comparing it with others.

In a causal model the tokens up to a position, and nothing else, determine the state there. So a summary has, at a few positions
(lengths 1, 2, 4, 8, ... and the last), a hash of the tokens so far and two fingerprints of the states there:

- a hash of their bits, for states that are equal where they must not be;
- a sketch of their direction, for states that differ where they must not: `SKETCH` sums of a row's elements with random signs,
  whose distances are those of the rows, give or take 1 / sqrt(2 * SKETCH), 18 %. Directions, because what goes wrong turns a
  state; rounding hardly does.

A file costs a few passes over its states, and no more memory than one layer of it in float32, whatever the folder's size.
"""

from __future__ import annotations

import re
import warnings
import zlib
from array import array
from base64 import b64encode
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from hashlib import blake2b
from itertools import combinations, islice, pairwise
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from torch import Tensor

from speculators_compat.verification.record import HEADER, Fault, Record, Stamp, Summary, positions

SKETCH = 16
# Elements of a unit row's sketch are about standard normal: int8 holds them up to 5.3, in steps that add 0.02 to a distance.
SKETCH_SCALE = 24

SAMPLE_NAME = re.compile(r"data_\d+\.pt")
ZIP = b"PK\x03\x04"
# torch emphasises parts of its messages.
ANSI = re.compile(r"\x1b\[[0-9;]*m")
DTYPES = (torch.bfloat16, torch.float16, torch.float32, torch.float64)
# Rows at the end of a file that are grouped by token, and how many of them have to repeat a token for that to say anything.
GROUPED_ROWS = 512
REPEATS = 32


def examine(folder: Path, stamp: Stamp) -> Record:
    """Read a file of `folder`, as speculators' trainer reads it; but torch's old format, which cannot be mapped, too."""
    try:
        return _examined(stamp, _load(folder / stamp.name))
    except Exception as error:  # noqa: BLE001 - a damaged or odd file raises nearly anything
        if _holds_objects(error) and not _is_named_as_sample(stamp.name):
            return Record(stamp)
        return Record(stamp, (Fault("unreadable", _told(error)),))


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        mapped = file.read(len(ZIP)) == ZIP
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # About files that are no samples.
        return torch.load(path, map_location="cpu", mmap=mapped, weights_only=True)


def _holds_objects(error: Exception) -> bool:
    """Whether a file could not be loaded because it holds more than data: a pickled model, a checkpoint, TorchScript."""
    return isinstance(error, UnpicklingError) or "TorchScript" in str(error)


def _told(error: Exception) -> str:
    if _holds_objects(error):
        found = re.search(r"GLOBAL (\S+)", str(error))
        return "holds pickled objects, which are not loaded" + (f": {found[1]}"[:160] if found else "")
    message = (ANSI.sub("", str(error)).splitlines() or [""])[0]
    return f"{type(error).__name__}: {message}"[:200]


def _examined(stamp: Stamp, content: Any) -> Record:
    if not _is_sample(content, stamp.name):
        return Record(stamp)
    if faults := tuple(_format_faults(content)):
        return Record(stamp, faults)
    sample = Sample(content)
    # Each of these looks at what those before it have found in order.
    for faults_of in (_length_faults, _value_faults, _repetition_faults):
        if faults := tuple(faults_of(sample)):
            return Record(stamp, faults)
    return Record(stamp, summary=_summary(sample))


class Sample:
    """The tensors of a file, and what is computed of them once.

    Attributes:
        ids: Token ids, int64 `[tokens]`.
        states: `[tokens, hidden_size]` by layer.
        mask: `[tokens]`, or None.
    """

    def __init__(self, content: dict[str, Any]) -> None:
        self.ids: Tensor = content["input_ids"].long()
        self.states: list[Tensor] = list(content["hidden_states"])
        self.mask: Tensor | None = content.get("loss_mask")

    @cached_property
    def norms(self) -> list[Tensor]:
        """Of each row, by layer: float32, or the states' own dtype if that is wider, `[tokens]`."""
        dtype = torch.promote_types(self.states[0].dtype, torch.float32)
        return [torch.linalg.vector_norm(layer, dim=1, dtype=dtype) for layer in self.states]

    @cached_property
    def hashes(self) -> list[Tensor]:
        """Of each row's bits, by layer: int64 `[tokens]`."""
        return list(map(row_hashes, self.states))


def _is_named_as_sample(name: str) -> bool:
    return SAMPLE_NAME.fullmatch(name.rpartition("/")[2]) is not None


def _is_sample(content: Any, name: str) -> bool:
    return _is_named_as_sample(name) or (isinstance(content, dict) and ("input_ids" in content or "hidden_states" in content))


def _format_faults(content: Any) -> Iterator[Fault]:
    if not isinstance(content, dict) or not {"input_ids", "hidden_states"} <= content.keys():
        found = f"a dict of {sorted(map(str, content))}" if isinstance(content, dict) else _described(content)
        yield Fault("format", f"holds {found}; expected a dict with input_ids, hidden_states and loss_mask")
        return
    ids, states, mask = content["input_ids"], content["hidden_states"], content.get("loss_mask")
    if not isinstance(ids, Tensor) or ids.ndim != 1 or not len(ids) or ids.is_floating_point():
        yield Fault("format", f"input_ids is {_described(ids)}; expected ints [tokens]")
    if mask is not None and (not isinstance(mask, Tensor) or mask.ndim != 1):
        yield Fault("format", f"loss_mask is {_described(mask)}; expected a tensor [tokens]")
    if not isinstance(states, list | tuple) or not states:
        yield Fault("format", f"hidden_states is {_described(states)}; expected one tensor per layer")
        return
    wrong = [layer for layer in states if not isinstance(layer, Tensor) or layer.ndim != 2 or not layer.is_floating_point()]
    kinds = {(layer.shape[1], layer.dtype) for layer in states if not wrong}
    if wrong:
        message = f"{len(wrong)} of {len(states)} hidden_states: {_described(wrong[0])}; expected [tokens, hidden_size]"
        yield Fault("format", message)
    elif len(kinds) > 1:
        yield Fault("format", f"layers of {len(kinds)} sizes or dtypes: {', '.join(sorted(map(str, kinds)))}; expected one")
    elif states[0].dtype not in DTYPES:
        yield Fault("format", f"hidden_states: {_described(states[0])}; expected floats of 16 bits or more")


def _length_faults(sample: Sample) -> Iterator[Fault]:
    tokens, lengths = len(sample.ids), [len(layer) for layer in sample.states]
    if set(lengths) != {tokens}:
        found = lengths[0] if len(set(lengths)) == 1 else f"by layer {lengths}"
        yield Fault("lengths", f"rows of states: {found}; expected {tokens}, one per token")
    if sample.mask is not None and len(sample.mask) != tokens:
        yield Fault("lengths", f"loss_mask has {len(sample.mask)} elements; expected {tokens}, one per token")


def _value_faults(sample: Sample) -> Iterator[Fault]:
    for kind, flags in (
        ("not finite", [~norms.isfinite() for norms in sample.norms]),
        ("zero rows", [norms == 0 for norms in sample.norms]),
    ):
        bad = {index: rows for index, layer in enumerate(flags) if (rows := layer.nonzero().flatten().tolist())}
        for index, rows in islice(bad.items(), 1):
            which = f"row {rows[0]}" if len(rows) == 1 else f"{len(rows)} rows from {rows[0]} to {rows[-1]}"
            yield Fault(kind, f"{which} in layer {index}, and some in {len(bad)} of {len(flags)} layers")


def _repetition_faults(sample: Sample) -> Iterator[Fault]:
    """Rows of different inputs that are equal, and layers that are.

    Inputs count as different if one of the last two tokens is: attention over one token, again and again, may rightly leave it
    as it was, and then its rows are equal.
    """
    before = torch.cat([sample.ids[:1], sample.ids[:-1]])
    for index, (layer, hashes) in enumerate(zip(sample.states, sample.hashes, strict=True)):
        order = hashes.argsort(stable=True)
        left, right = order[:-1], order[1:]
        differ = (sample.ids[left] != sample.ids[right]) | (before[left] != before[right])
        repeated = (hashes[left] == hashes[right]) & differ
        pairs = list(zip(left[repeated].tolist(), right[repeated].tolist(), strict=True))
        first, second = min(pairs, default=(0, 0))
        if pairs and torch.equal(layer[first], layer[second]):
            message = f"rows {first} and {second} of layer {index} are equal, though the tokens up to them differ"
            yield Fault("repeated rows", message + (f"; {len(pairs)} such pairs" if len(pairs) > 1 else ""))
            break
    for (first, one), (second, other) in combinations(enumerate(sample.states), 2):
        if torch.equal(sample.hashes[first], sample.hashes[second]) and torch.equal(one, other):
            yield Fault("repeated layers", f"layers {first} and {second} are equal")
            break


def _summary(sample: Sample) -> Summary:
    tokens, mask = len(sample.ids), sample.mask
    at = positions(tokens)
    return Summary(
        tokens=tokens,
        layers=len(sample.states),
        hidden_size=sample.states[0].shape[1],
        dtype=str(sample.states[0].dtype).removeprefix("torch."),
        masked=mask is not None,
        openers=_openers(sample),
        distinct=packed(sample.ids[:-1]),
        norms=[_quartiles(norms[1:]) for norms in sample.norms if tokens > 1],
        by_token=token_correlation(sample.ids, sample.states),
        prefixes=_prefix_hashes(sample.ids.tolist(), at),
        rows=[_digest(of_layers) for of_layers in torch.stack(sample.hashes, dim=1)[at].tolist()],
        directions=_sketches(torch.stack([layer[at] for layer in sample.states], dim=1)),
    )


def _openers(sample: Sample) -> list[list[int]]:
    if sample.mask is None:
        return []
    on, ids = sample.mask.bool(), sample.ids.tolist()
    ends = (on[1:] & ~on[:-1]).nonzero().flatten() + 1
    return [list(opener) for opener in sorted({tuple(ids[max(0, end - HEADER) : end]) for end in ends.tolist()})]


def packed(ids: Tensor) -> str:
    """The distinct ids, as the differences between them in order: about ten bits each."""
    differences = ids.unique().diff(prepend=torch.zeros(1, dtype=torch.int64))
    return b64encode(zlib.compress(differences.numpy().tobytes(), 9)).decode()


def token_correlation(ids: Tensor, states: Sequence[Tensor]) -> list[float]:
    """How much more rows of the same token resemble each other than any two rows, by layer.

    The residual stream carries a token's embedding on from layer to layer, so this is well above 0 for a model's states, and
    about 0 where rows and tokens do not belong together. It is the intraclass correlation of the rows' directions, of at most
    `GROUPED_ROWS` rows from the second half on: what prompts share usually stands at their beginning.

    Args:
        ids: Token ids, int64 `[tokens]`.
        states: `[tokens, hidden_size]`, by layer.

    Returns:
        1 if a token's rows are all alike, about 0 by chance. Empty if too few rows repeat a token, or most are of one.
    """
    start = max(len(ids) // 2, len(ids) - GROUPED_ROWS)
    _, group, counts = ids[start:].unique(return_inverse=True, return_counts=True)
    repeats = int((counts - 1).sum())
    if repeats < REPEATS or int(counts.max()) > len(group) // 2:
        return []
    correlations = []
    for layer in states:
        rows = torch.nn.functional.normalize(layer[start:].float(), dim=1)
        rows -= rows.mean(dim=0)
        total = float(rows.square().sum())
        sums = torch.zeros(len(counts), rows.shape[1]).index_add_(0, group, rows)
        own = torch.zeros(len(counts)).index_add_(0, group, rows.square().sum(dim=1))
        # Mean product of two rows of one token, weighted by its repeats; then of any two rows, and of a row with itself.
        within = float(((sums.square().sum(dim=1) - own) / counts).sum()) / repeats
        between, itself = -total / len(group) / (len(group) - 1), total / len(group)
        correlations.append(round((within - between) / max(itself - between, 1e-12), 4))
    return correlations


def _prefix_hashes(ids: list[int], at: list[int]) -> list[str]:
    running, hashes = blake2b(digest_size=8), []
    for start, position in pairwise([-1, *at]):
        running.update(array("q", ids[start + 1 : position + 1]).tobytes())
        hashes.append(running.hexdigest())
    return hashes


def _digest(values: list[int]) -> str:
    return blake2b(array("q", values).tobytes(), digest_size=8).hexdigest()


def row_hashes(layer: Tensor) -> Tensor:
    """Hash of each row's bits, int64 `[tokens]`: the same for the same bits, whatever else is hashed with them."""
    octets = layer.contiguous().view(torch.uint8)
    if odd := octets.shape[1] % 8:
        octets = torch.nn.functional.pad(octets, (0, 8 - odd))
    words = octets.view(torch.int64)
    return (words * _multipliers(words.shape[1])).sum(dim=1)


@lru_cache(maxsize=4)
def _multipliers(size: int) -> Tensor:
    return torch.randint(-(2**62), 2**62, (size,), generator=torch.Generator().manual_seed(0)) * 2 + 1


@lru_cache(maxsize=4)
def _signs(hidden_size: int) -> Tensor:
    return torch.randint(0, 2, (hidden_size, SKETCH), generator=torch.Generator().manual_seed(1)).float() * 2 - 1


def _sketches(rows: Tensor) -> list[str]:
    """Sketches of the directions of rows `[positions, layers, hidden_size]`, one string per position."""
    sketches = torch.nn.functional.normalize(rows.float(), dim=-1) @ _signs(rows.shape[-1])
    levels = (sketches * SKETCH_SCALE).round().clamp(-127, 127).to(torch.int8)
    return [b64encode(level.numpy().tobytes()).decode() for level in levels]


def _quartiles(norms: Tensor) -> list[float]:
    ordered = norms.sort().values
    return [float(f"{ordered[round(share * (len(ordered) - 1))]:.4g}") for share in (0, 0.25, 0.5, 0.75, 1)]


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a {str(value.dtype).removeprefix('torch.')} tensor {list(value.shape)}"
    return f"an empty {type(value).__name__}" if value in ([], ()) else f"of type {type(value).__name__}"
