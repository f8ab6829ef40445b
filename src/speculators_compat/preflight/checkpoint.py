"""Whether a checkpoint's weight files are all there and whole, and how large they are: only their headers are read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INDEX = "model.safetensors.index.json"
# In the order in which vLLM looks for them. `consolidated` files are the same weights in another layout.
PATTERNS = ("*.safetensors", "*.bin", "*.pt")


@dataclass(frozen=True)
class Weights:
    """The weight files of a checkpoint.

    Attributes:
        size: In bytes; None if there are none.
        problems: What is wrong with them.
    """

    size: int | None
    problems: tuple[str, ...]


def weights(model: Path) -> Weights:
    """Look at the weight files of a checkpoint."""
    names = _names(model)
    problems = [f"{name}: {problem}" for name in names for problem in _problems(model / name)]
    shown = [*problems[:3], *([f"and {len(problems) - 3} more weight files"] if len(problems) > 3 else [])]
    size = sum((model / name).stat().st_size for name in names if (model / name).exists())
    return Weights(size if names else None, tuple(shown))


def _names(model: Path) -> list[str]:
    if (model / INDEX).exists():
        return sorted(set(json.loads((model / INDEX).read_text())["weight_map"].values()))
    for pattern in PATTERNS:
        if names := sorted(path.name for path in model.glob(pattern) if not path.name.startswith("consolidated")):
            return names
    return []


def _problems(path: Path) -> Iterator[str]:
    if not path.exists():
        yield "is missing" if not path.is_symlink() else "is a link to a file that is missing"
    elif path.suffix == ".safetensors" and (expected := _expected_size(path)) != (found := path.stat().st_size):
        yield f"has {found:,} bytes, expected {expected:,} by its header" if expected else "has no header of a safetensors file"


def _expected_size(path: Path) -> int | None:
    """The size that a safetensors file states: eight bytes, a header of as many bytes as they say, and the tensors."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        try:
            header = json.loads(file.read(min(length, 100_000_000)))
            ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
            return 8 + length + max(ends, default=0)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None
