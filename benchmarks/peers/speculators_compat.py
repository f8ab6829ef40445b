"""speculators' generator with this package: what is measured."""

from __future__ import annotations

import speculators_compat  # noqa: F401  before speculators, as the README says

# isort: split
import inspect
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator

from benchmarks.peers import Peer, States
from benchmarks.peers.in_worker import peak_gpu_bytes, start_clocks, stop_clocks
from benchmarks.settings import Prompts, Settings


class Extraction(Peer):
    """A generator.

    Args:
        settings: What it is built with.
        clocks: Whether the time is split: that looks into this package's capture.
    """

    def __init__(self, settings: Settings, clocks: bool = True) -> None:
        self.clocks = clocks

        class Generator(VllmHiddenStatesGenerator):  # type: ignore[misc]
            def _create_vllm_config(self, *args: Any, **kwargs: Any) -> Any:
                config = super()._create_vllm_config(*args, **kwargs)
                config.load_config.load_format = "dummy" if settings.random_weights else "auto"
                config.scheduler_config.max_num_batched_tokens = settings.max_num_batched_tokens
                config.scheduler_config.max_num_seqs = settings.max_num_seqs
                return config

        self.generator = Generator(
            settings.model,
            layer_ids=list(settings.layers),
            max_model_len=settings.max_model_len,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            tensor_parallel_size=settings.tensor_parallel_size,
        )

    def run(self, prompts: Prompts) -> States:
        return [result["hidden_states"] for result in self.generator.generate(prompts)]

    def tap(self, layers: tuple[int, ...]) -> None:
        self.generator.layer_ids = list(layers)
        self.generator._setup_capture()

    def peak_gpu_bytes(self) -> int | None:
        peaks: list[int | None] = self.generator.executor.collective_rpc(peak_gpu_bytes)
        return peaks[0]

    def split(self, prompts: Prompts) -> dict[str, float]:
        if not self.clocks:
            return {}
        scheduler, executor = inspect.unwrap(self.generator.scheduler), inspect.unwrap(self.generator.executor)
        clocks: defaultdict[str, float] = defaultdict(float)
        executor.collective_rpc(start_clocks)
        with (
            _clock(clocks, scheduler, "schedule", lambda *args: "schedule"),
            _clock(clocks, executor, "collective_rpc", _purpose),
        ):
            started = time.perf_counter()
            self.run(prompts)
            whole = time.perf_counter() - started
        clocks["assembly"] = whole - sum(clocks.values())
        return {"whole": whole, **clocks, **executor.collective_rpc(stop_clocks)[0]}


def _purpose(method: Any, *args: Any) -> str:
    return "transport" if method == "_get_captured_states" else "forward"


@contextmanager
def _clock(clocks: defaultdict[str, float], owner: Any, method: str, name: Callable[..., str]) -> Iterator[None]:
    """Add the time that a method takes to a clock that is named after its arguments."""
    inner = getattr(owner, method)

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return inner(*args, **kwargs)
        finally:
            clocks[name(*args)] += time.perf_counter() - started

    setattr(owner, method, timed)
    try:
        yield
    finally:
        delattr(owner, method)


def start(settings: Settings) -> Peer:
    return Extraction(settings)
