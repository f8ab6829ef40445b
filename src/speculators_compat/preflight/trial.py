"""Runs the real extraction on a small model, and checks what comes out of it against itself.

There is no reference for random weights, so states are held against each other: a prompt's states must not depend on what else
is extracted, nor on how prompts are cut into steps, and must depend on the prompt.
"""

from __future__ import annotations

import ctypes
import json
import math
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculators_compat.errors import PromptError

if TYPE_CHECKING:
    from torch import Tensor

Prompt = list[int]
Results = list[dict[str, Any]]

# Prompts are cut at this many tokens, so most steps hold the end of one prompt and the beginning of another.
TOKENS_PER_STEP = 192
# Rounding in 16 bits makes the worst token of real architectures 0.04 off (docs/correctness.md); another token's state is 0.5
# to 1.4 off. What a quantised model rounds comes on top.
TOLERANCE = 0.06
VISIBLE = 3 * TOLERANCE


@dataclass(frozen=True)
class Options:
    """How to run the small model.

    Attributes:
        model: Its folder.
        large_model: A folder with the large model's config, and no weights.
        max_model_len: That of the large model.
        layer_ids: The layers to capture, which it has.
        tensor_parallel_size: How many workers.
        gpu_memory_utilization: As for the large model.
        vocabulary_size: Ids of prompts are below it.
        window: The sliding window that every layer has; 0 if there is none.
    """

    model: str
    large_model: str
    max_model_len: int
    layer_ids: tuple[int, ...]
    tensor_parallel_size: int
    gpu_memory_utilization: float
    vocabulary_size: int
    window: int


@dataclass(frozen=True)
class Check:
    """One thing that was tried: whether it held, and what was seen."""

    name: str
    held: bool
    words: str


class DoesNotHoldError(Exception):
    """What a check expects is not so."""


def main() -> None:
    """In a process of its own: try what the options in the file `argv[1]` say, and write the checks to the file `argv[2]`."""
    end_with_the_parent()
    options = Options(**json.loads(Path(sys.argv[1]).read_text()))
    Trial(options, Path(sys.argv[2])).run()


def end_with_the_parent() -> None:
    """Have the kernel terminate this process when the one that started it ends, however it does (prctl, PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)


class Trial:
    """A generator on the small model, and the prompts that it is tried with.

    Args:
        options: How to run it.
        output: Where to write what is found out, after each check, so that a crash leaves what was found before it.
    """

    def __init__(self, options: Options, output: Path) -> None:
        self.options = options
        self.output = output
        self.checks: list[Check] = []
        shared = self._prompt(40, seed=7)
        short = [self._prompt(3 + seed % 17, seed) for seed in range(32)]
        long = [self._prompt(50 + 23 * seed, seed) for seed in range(6)]
        self.prompts = [shared + self._prompt(3), shared + self._prompt(9), *long, *short]
        self.again = shared + self._prompt(5)
        self.generator: Any = None
        self.together: Results = []

    def run(self) -> None:
        """Check one thing after the other; what needs a generator or states that there are none of is left out."""
        if not (self._check("config", self._config) and self._check("start", self._start)):
            return
        try:
            if self._check("complete", self._complete):
                for name, check in (
                    ("context", self._context),
                    ("batching", self._batching),
                    ("shared prefixes", self._shared_prefixes),
                    ("layers", self._layers),
                    ("sliding window", self._window),
                ):
                    self._check(name, check)
            self._check("bad input", self._bad_input)
            self._check("failed call", self._failed_call)
            self._check("workers", self._workers)
        finally:
            self.generator.executor.shutdown()

    def _check(self, name: str, check: Callable[[], str]) -> bool:
        try:
            found = Check(name, True, check())
        except DoesNotHoldError as error:
            found = Check(name, False, str(error))
        except Exception as error:  # noqa: BLE001 - whatever is raised is what the large model would end in
            found = Check(name, False, f"{type(error).__name__}: {error}".strip())
        self.checks.append(found)
        self.output.write_text(json.dumps([asdict(check) for check in self.checks]))
        return found.held

    def _prompt(self, length: int, seed: int = 0) -> Prompt:
        return [(seed * 131 + place * place * 7 + place * 3) % (self.options.vocabulary_size - 8) for place in range(length)]

    def _generate(self, prompts: Sequence[Prompt]) -> Results:
        return self.generator.generate([list(ids) for ids in prompts])  # type: ignore[no-any-return]

    def _config(self) -> str:
        """What vLLM says of the large model's own config, before it loads anything."""
        from speculators.data_generation import VllmHiddenStatesGenerator

        unbuilt = object.__new__(VllmHiddenStatesGenerator)
        unbuilt._create_vllm_config(
            model_path=self.options.large_model,
            max_model_len=self.options.max_model_len,
            gpu_memory_utilization=self.options.gpu_memory_utilization,
            tensor_parallel_size=self.options.tensor_parallel_size,
        )
        return f"vLLM takes the large model's, with max_model_len {self.options.max_model_len}"

    def _start(self) -> str:
        from speculators.data_generation import VllmHiddenStatesGenerator

        from speculators_compat_trial import EXTENSION, LOAD_FORMAT

        class TrialGenerator(VllmHiddenStatesGenerator):  # type: ignore[misc]
            def _create_vllm_config(self, *args: Any, **kwargs: Any) -> Any:
                config = super()._create_vllm_config(*args, **kwargs)
                config.load_config.load_format = LOAD_FORMAT
                config.parallel_config.worker_extension_cls = EXTENSION
                config.scheduler_config.max_num_batched_tokens = TOKENS_PER_STEP
                return config

        started = time.perf_counter()
        self.generator = TrialGenerator(
            self.options.model,
            layer_ids=list(self.options.layer_ids),
            max_model_len=TOKENS_PER_STEP,
            gpu_memory_utilization=self.options.gpu_memory_utilization,
            tensor_parallel_size=self.options.tensor_parallel_size,
        )
        return f"the generator was built in {time.perf_counter() - started:.0f} s"

    def _complete(self) -> str:
        self.together = self._generate(self.prompts)
        for index, (ids, result) in enumerate(zip(self.prompts, self.together, strict=True)):
            if result["input_ids"].tolist() != ids:
                raise DoesNotHoldError(f"result {index} is that of another prompt")
            states = result["hidden_states"]
            if len(states) != len(self.options.layer_ids):
                raise DoesNotHoldError(f"prompt {index} has states of {len(states)} layers, not {len(self.options.layer_ids)}")
            if short := [len(state) for state in states if len(state) != len(ids)]:
                raise DoesNotHoldError(f"prompt {index} has {len(ids)} tokens, but states of {short[0]}")
            if not all(state.isfinite().all() for state in states):
                raise DoesNotHoldError(f"prompt {index} has states that are not finite")
        tokens, (shape, dtype) = sum(map(len, self.prompts)), (states[0].shape[1], states[0].dtype)
        return f"{len(self.prompts)} prompts, {tokens} tokens, {len(states)} layers of {shape}, {dtype}, all finite"

    def _context(self) -> str:
        """Without this, states of tokens that have lost what is before them could look right."""
        ids = self.prompts[0]
        half = len(ids) // 2
        before, behind = self._prompt(half, seed=99) + ids[half:], ids[:half] + self._prompt(len(ids) - half, seed=99)
        other_past, other_future = (result["hidden_states"][-1] for result in self._generate([before, behind]))
        state = self.together[0]["hidden_states"][-1]
        if (least := min(deviations(other_past[half:], state[half:]))) < VISIBLE:
            raise DoesNotHoldError(f"what is before a token changes its states by {least:.3f} only, which proves nothing")
        if (most := deviation(other_future[:half], state[:half])) > TOLERANCE:
            raise DoesNotHoldError(f"what is behind a token changes its states by {most:.3f}")
        return f"states depend on what is before them ({least:.2f} or more), and on nothing behind them ({most:.4f})"

    def _batching(self) -> str:
        worst = 0.0
        for index, ids in enumerate(self.prompts):
            alone, among = self._generate([ids])[0]["hidden_states"], self.together[index]["hidden_states"]
            worst = max(worst, *map(deviation, among, alone))
            if worst > TOLERANCE:
                raise DoesNotHoldError(
                    f"states of prompt {index} alone and among others, cut into steps, differ by {worst:.3f}"
                )
        return f"prompts alone and among others, cut into steps of {TOKENS_PER_STEP} tokens: {worst:.4f}"

    def _shared_prefixes(self) -> str:
        again, shared = self._generate([self.again])[0]["hidden_states"], len(self.again) - 5
        worst = max(
            deviation(state[:shared], other[:shared])
            for result in self.together[:2]
            for state, other in zip(again, result["hidden_states"], strict=True)
        )
        if [len(state) for state in again] != [len(self.again)] * len(again):
            raise DoesNotHoldError(f"a prompt of {len(self.again)} tokens has states of {len(again[0])}")
        if worst > TOLERANCE:
            raise DoesNotHoldError(f"states of a prefix that two prompts share differ by {worst:.3f}")
        return f"a prefix in one batch and in a later call: {worst:.4f}"

    def _layers(self) -> str:
        states = self.together[0]["hidden_states"]
        distances = [deviation(later, earlier) for earlier, later in pairwise(states)]
        if distances and min(distances) < TOLERANCE:
            raise DoesNotHoldError(f"two layers have the same states ({min(distances):.4f})")
        return f"each differs from the one before it ({min(distances, default=0):.2f})"

    def _window(self) -> str:
        window = self.options.window
        if not window:
            return "there is none that every layer has"
        ids = self._prompt(2 * window)
        other = [(ids[0] + 1) % (self.options.vocabulary_size - 8), *ids[1:]]
        first, second = (result["hidden_states"][0] for result in self._generate([ids, other]))
        reach = window * (self.options.layer_ids[0] + 1)
        beyond = deviation(first[reach:], second[reach:])
        if beyond > 0:
            raise DoesNotHoldError(f"a token {reach} positions back changes a state by {beyond:.3f}: attention does not slide")
        return f"tokens {reach} positions back change nothing"

    def _bad_input(self) -> str:
        try:
            self._generate([[1, 2], [3, 10**9]])
        except PromptError:
            pass
        else:
            raise DoesNotHoldError("ids outside the vocabulary were not refused")
        return "ids outside the vocabulary are refused, and nothing is lost"

    def _failed_call(self) -> str:
        inner = self.generator.executor.__wrapped__
        rpc = inner.collective_rpc

        def fail_once(*args: Any, **kwargs: Any) -> None:
            inner.collective_rpc = rpc
            raise InterruptedError

        inner.collective_rpc = fail_once
        with suppress(InterruptedError):
            self._generate(self.prompts[:1])
        if left := [*getattr(self.generator.scheduler, "submitted", ()), *self.generator.scheduler.requests]:
            raise DoesNotHoldError(f"{len(left)} requests of a call that failed are left for the next one")
        after = self._generate(self.prompts[1:2])[0]["hidden_states"]
        if (worst := max(map(deviation, after, self.together[1]["hidden_states"]))) > TOLERANCE:
            raise DoesNotHoldError(f"after a call that failed, states differ by {worst:.3f}")
        return "the call after one that failed is right"

    def _workers(self) -> str:
        rpc = self.generator.executor.collective_rpc
        if held := max(rpc("_trial_held_requests")):
            raise DoesNotHoldError(f"{held} requests are left in a worker")
        if towers := max(rpc("_trial_tower_parameters")):
            raise DoesNotHoldError(f"{towers} parameters of towers for other modalities are loaded, which text does not need")
        return "no request and no tower is left in them"


def deviations(state: Tensor, right: Tensor) -> list[float]:
    """By token, the norm of the difference over the norm of the right state; both are `[tokens, hidden_size]`.

    Infinite where that is no number: any comparison with NaN is false, so it would pass for a small one.
    """
    relative = (state.float() - right.float()).norm(dim=-1) / right.float().norm(dim=-1)
    return relative.nan_to_num(nan=math.inf, posinf=math.inf).tolist()  # type: ignore[no-any-return]


def deviation(state: Tensor, right: Tensor) -> float:
    """That of the worst token."""
    return max(deviations(state, right), default=0.0)
