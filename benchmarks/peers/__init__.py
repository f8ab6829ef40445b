"""Ways to the same states, each a module with `start(settings)`, which gives back a `Peer`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from benchmarks.settings import Prompts

States = Sequence[Sequence[Tensor]]


class Peer(ABC):
    """A model that has been loaded."""

    @abstractmethod
    def run(self, prompts: Prompts) -> States | None:
        """What is timed.

        Returns:
            For each prompt, one CPU tensor `[tokens, hidden_size]` for each layer; None if the peer makes no states.
        """

    def tap(self, layers: tuple[int, ...]) -> None:
        """Give the states of these layers from now on."""
        self.layers = layers

    def split(self, prompts: Prompts) -> dict[str, float]:
        """Where the time of a run goes, in seconds; what has a star goes on while the model runs."""
        return {}

    def peak_gpu_bytes(self) -> int | None:
        """The most that one GPU had allocated since this was last asked, beside what stays; None if there is no GPU."""
        return None
