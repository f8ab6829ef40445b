"""A bar with tokens per second for long calls of generate(), for those who ask for it with SPECULATORS_COMPAT_PROGRESS=1."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

VARIABLE = "SPECULATORS_COMPAT_PROGRESS"


class Progress:
    """Counts the tokens whose states are extracted; shows them if the variable says so.

    It lasts as long as the call, so that the rate, in the end, is that of the call and not of the model alone.
    """

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.close()

    def expect(self, tokens: int) -> None:
        """Begin, with so many tokens to come."""
        if tokens and os.environ.get(VARIABLE, "0") not in ("", "0"):
            from tqdm.auto import tqdm

            self._bar = tqdm(total=tokens, desc="hidden states", unit="tokens", unit_scale=True)

    def advance(self, tokens: int) -> None:
        """Count the tokens of a step; those of a prompt that was preempted may come again."""
        if self._bar is not None:
            self._bar.update(min(tokens, self._bar.total - self._bar.n))
