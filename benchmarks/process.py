"""A peer in a process of its own: what one leaves behind, in memory or in modules, is nothing to another."""

from __future__ import annotations

import socket
import subprocess
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.settings import Settings


@dataclass
class Peak:
    """What a run of a peer took at most.

    Attributes:
        host_bytes: By how much the machine's memory in use rose meanwhile.
        gpu_bytes: What one GPU had allocated beside what stays; None without a GPU.
    """

    host_bytes: int
    gpu_bytes: int | None


class PeerProcess:
    """The parent's side; the other is benchmarks/server.py.

    Args:
        name: A module of `benchmarks.peers`.
        settings: What it is started with.
        log: What it prints goes there.
        python: Interpreter, where the peer needs another vLLM.

    Raises:
        RuntimeError: If it did not start.
    """

    def __init__(self, name: str, settings: Settings, log: Path, python: str = sys.executable) -> None:
        self.name = name
        here, there = socket.socketpair()
        with there, log.open("ab") as output:
            handle = there.fileno()
            self.process = subprocess.Popen(
                [python, "-m", "benchmarks.server", name, str(handle)], stdout=output, stderr=output, pass_fds=[handle]
            )
        self.connection = Connection(here.detach())
        try:
            self.ask("start", settings)
        except RuntimeError:
            self.close()
            raise

    def ask(self, what: str, *args: Any) -> Any:
        """Have it do something, and wait for the answer.

        Raises:
            RuntimeError: If it failed.
        """
        try:
            self.connection.send((what, args))
            answer = self.connection.recv()
        except (EOFError, ConnectionError):
            answer = RuntimeError("it ended")
        if isinstance(answer, Exception):
            raise RuntimeError(f"{self.name}: {type(answer).__name__}: {answer}") from answer
        return answer

    def close(self) -> None:
        """End it."""
        self.connection.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
