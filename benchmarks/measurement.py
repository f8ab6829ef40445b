"""Runs peers on workloads, and keeps what was seen."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.machine import gpus
from benchmarks.process import Peak, PeerProcess
from benchmarks.settings import Settings, Workload

# Two ways of computing the same states in bfloat16 differ by 0.005 to 0.01 here; the states of another token by more than 1.
TOLERANCE = 0.05


@dataclass
class Cell:
    """One peer on one workload.

    Attributes:
        peer: Its name.
        workload: In words.
        tokens: Of all prompts.
        state_bytes: What the states amount to.
        seconds: Of each run.
        peak: What one more run took at most.
        split: Where the time of one more run went, in seconds.
        copy_seconds: Of one copy of as many bytes into fresh memory.
    """

    peer: str
    workload: str
    tokens: int
    state_bytes: int
    seconds: list[float] = field(default_factory=list)
    peak: Peak | None = None
    split: dict[str, float] = field(default_factory=dict)
    copy_seconds: float = 0.0


@dataclass
class Measurement:
    """One run of the benchmark.

    Attributes:
        date: When.
        shape: Of the model.
        machine: What on, and with which versions.
        settings: Those of all peers.
        cells: What was measured.
        deviations: How far each peer's states are from the first peer's that makes any, relative to their norm.
        failures: What went wrong, in words.
    """

    date: str
    shape: str
    machine: dict[str, str]
    settings: dict[str, object]
    cells: list[Cell] = field(default_factory=list)
    deviations: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """What to measure.

    Attributes:
        peers: Names, with the interpreter of each.
        takes_part: In how many of the workloads, from the first on, each of them takes part.
        settings: Those of all peers.
        workloads: In order.
        vocabulary: Of the model.
        hidden_size: Of the model.
        repeat: How often each is run, after once that does not count.
        together: Whether all peers are there at once, and take turns.
        check: Whether peers have to agree about the states.
        log: Where peers print.
    """

    peers: Mapping[str, str]
    takes_part: Mapping[str, int]
    settings: Settings
    workloads: Sequence[Workload]
    vocabulary: int
    hidden_size: int
    repeat: int
    together: bool
    check: bool
    log: Path


def measure(plan: Plan, result: Measurement, keep: Callable[[], None]) -> None:
    """Run everything, and add it to `result`; what fails is noted there, and the rest goes on.

    Args:
        plan: What to run.
        result: What is added to.
        keep: Called whenever something has been added.
    """
    groups = [list(plan.peers)] if plan.together else [[name] for name in plan.peers]
    with tempfile.TemporaryDirectory() as folder:
        for names in groups:
            with ExitStack() as stack:
                peers = list(_started(plan, names, stack, result))
                if plan.check:
                    for peer in peers:
                        _keep_states(plan, peer, Path(folder))
                for number, workload in enumerate(plan.workloads):
                    peers = [peer for peer in peers if number < plan.takes_part[peer.name]]
                    peers = list(_measured(plan, workload, peers, result))
                    keep()
        if plan.check:
            _compare(Path(folder), list(plan.peers), result)
            keep()


def _started(plan: Plan, names: Sequence[str], stack: ExitStack, result: Measurement) -> Iterator[PeerProcess]:
    for name in names:
        try:
            peer = PeerProcess(name, plan.settings, plan.log, plan.peers[name])
        except RuntimeError as error:
            result.failures.append(f"{name} did not start: {error}")
            continue
        stack.callback(peer.close)
        yield peer


def _measured(plan: Plan, workload: Workload, peers: Sequence[PeerProcess], result: Measurement) -> Iterator[PeerProcess]:
    """Run peers by turns, and give back those that can go on."""
    tokens = workload.batch * workload.tokens
    state_bytes = tokens * plan.hidden_size * 2 * len(workload.layers)
    cells = {peer.name: Cell(peer.name, str(workload), tokens, state_bytes) for peer in peers}
    failed = set()

    def ask(peer: PeerProcess, what: str, *args: Any) -> Any:
        if peer.name in failed:
            return None
        try:
            return peer.ask(what, *args)
        except RuntimeError as error:
            failed.add(peer.name)
            result.failures.append(f"{workload}: {error}")

    prompts = workload.prompts(plan.vocabulary, seed=0)
    for peer in peers:
        ask(peer, "tap", workload.layers)
        cells[peer.name].peak = ask(peer, "peak", prompts)
    for repetition in range(1, plan.repeat + 1):
        prompts = workload.prompts(plan.vocabulary, seed=repetition)
        for peer in _order(peers, repetition):
            cells[peer.name].seconds.append(ask(peer, "run", prompts))
    result.machine |= gpus()  # its clocks are still those of the runs
    copy_seconds = _copy(state_bytes)
    for peer in peers:
        cells[peer.name].split, cells[peer.name].copy_seconds = ask(peer, "split", prompts), copy_seconds
        if peer.name not in failed:
            result.cells.append(cells[peer.name])
            rates = [f"{tokens / seconds:.0f}" for seconds in cells[peer.name].seconds]
            print(f"{workload}: {peer.name}", *rates, "tokens/s", file=sys.stderr)
            yield peer


def _order(peers: Sequence[PeerProcess], repetition: int) -> Sequence[PeerProcess]:
    """Who comes after whom: a GPU is slower when it is hot, so in 2 n runs, each of n peers is in each place twice."""
    turns, first = divmod(repetition, len(peers) or 1)
    turned = [*peers[first:], *peers[:first]]
    return turned if turns % 2 else turned[::-1]


def _copy(count: int) -> float:
    """How long it takes to copy bytes into fresh memory, in seconds."""
    import torch

    source = torch.ones(count, dtype=torch.uint8)
    started = time.perf_counter()
    source.clone()
    return time.perf_counter() - started


def _keep_states(plan: Plan, peer: PeerProcess, folder: Path) -> None:
    peer.ask("tap", plan.settings.layers)
    peer.ask("states", plan.workloads[0].prompts(plan.vocabulary, seed=0), folder / peer.name)


def _compare(folder: Path, names: Sequence[str], result: Measurement) -> None:
    import torch

    first, *others = [(name, torch.load(folder / name)) for name in names if (folder / name).exists()]
    for name, found in others:
        pairs = [pair for ours, theirs in zip(found, first[1], strict=True) for pair in zip(ours, theirs, strict=True)]
        # torch's max, since Python's would pass over what is no number.
        worst = float(torch.stack([(ours - theirs).norm() / theirs.norm() for ours, theirs in pairs]).max())
        result.deviations[name] = worst
        if not worst < TOLERANCE:
            result.failures.append(f"states of {name} differ from those of {first[0]} by {worst:.3f}")
    if not others:
        result.failures.append("there are no two peers whose states could be compared")
