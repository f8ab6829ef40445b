"""A peer's own process: `python -m benchmarks.server PEER HANDLE`, which benchmarks/process.py starts."""

from __future__ import annotations

import importlib
import os
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

from benchmarks.memory import Watch, settle
from benchmarks.peers import Peer
from benchmarks.process import Peak
from benchmarks.settings import Prompts, Settings


class Server:
    """Does what the parent asks for.

    Args:
        name: The peer's module.
    """

    peer: Peer
    turn_seconds: float

    def __init__(self, name: str) -> None:
        self.module = importlib.import_module(f"benchmarks.peers.{name}")

    def start(self, settings: Settings) -> None:
        self.peer, self.turn_seconds = self.module.start(settings), settings.turn_seconds

    def tap(self, layers: tuple[int, ...]) -> None:
        self.peer.tap(layers)

    def run(self, prompts: Prompts) -> float:
        """How long a call took, in seconds: the median of a turn's, without the first where there are more.

        Extraction is call after call, and the first has to wake what slept and fill what others have emptied.
        """
        turn, calls = time.perf_counter(), []
        while not calls or time.perf_counter() - turn < self.turn_seconds:
            started = time.perf_counter()
            states = self.peer.run(prompts)
            calls.append(time.perf_counter() - started)
            del states
        return median(calls[1:] or calls)

    def peak(self, prompts: Prompts) -> Peak:
        self.peer.run([prompts[0][:2]])  # so that nothing is left of an earlier run
        settle()
        self.peer.peak_gpu_bytes()
        with Watch() as watch:
            states = self.peer.run(prompts)
        del states
        return Peak(watch.rise, self.peer.peak_gpu_bytes())

    def split(self, prompts: Prompts) -> dict[str, float]:
        return self.peer.split(prompts)

    def states(self, prompts: Prompts, path: Path) -> bool:
        """Write the states of a run to a file; False if there are none."""
        import torch

        states = self.peer.run(prompts)
        if states is not None:
            torch.save([[layer.float() for layer in layers] for layers in states], path)
        return states is not None


def main(name: str, handle: str) -> None:
    connection = Connection(int(handle))
    server = Server(name)
    while True:
        try:
            what, args = connection.recv()
        except EOFError:
            break
        try:
            answer = getattr(server, what)(*args)
        except Exception as error:  # noqa: BLE001 - told to the parent, whatever it is
            answer = RuntimeError(f"{type(error).__name__}: {error}")
        connection.send(answer)


if __name__ == "__main__":
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
    main(*sys.argv[1:])
