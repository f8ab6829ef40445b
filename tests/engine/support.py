"""What the engine tests share: prompts, generators beside their reference, and scripts run in fresh processes."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest import mock

import pytest
import torch
from reference import Reference, relative_error
from speculators.data_generation import VllmHiddenStatesGenerator
from tiny_checkpoints import make, text_twin

from speculators_compat.detection import detect
from tests.cases import TOLERANCE, prompt
from tests.in_worker import held_requests

__all__ = [
    "LAYERS",
    "Extractor",
    "Float32Generator",
    "prompt",
    "recorded_calls",
    "requests_in_workers",
    "run_script",
    "why_not",
]

LAYERS = [0, 2, 3, 4]


class Float32Generator(VllmHiddenStatesGenerator):  # type: ignore[misc]
    """Upstream's generator, run in the precision that the checkpoint has (vLLM takes bfloat16 otherwise)."""

    def _create_vllm_config(self, *args: Any, **kwargs: Any) -> Any:
        config = super()._create_vllm_config(*args, **kwargs)
        config.model_config.dtype = torch.float32
        return config


class Extractor:
    """A generator and the reference for its states.

    Args:
        checkpoints: Where the tiny checkpoints are made.
        name: Which of them.
        float32: Whether to run the model in float32.
        generator: The class to build instead of upstream's.
        options: Passed to the generator.
    """

    def __init__(
        self,
        checkpoints: Path,
        name: str,
        *,
        float32: bool = False,
        generator: type[VllmHiddenStatesGenerator] | None = None,
        **options: Any,
    ) -> None:
        if reason := why_not(name):
            pytest.skip(reason)
        directory = make(name, checkpoints / name)
        options = {"layer_ids": LAYERS, "max_model_len": 1100} | options
        self.layers = sorted(set(options["layer_ids"]))
        self.reference = Reference(text_twin(directory))
        build = generator or (Float32Generator if float32 else VllmHiddenStatesGenerator)
        self.generator = build(str(directory), **options)

    def __enter__(self) -> Extractor:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.generator.executor.shutdown()

    def check(self, prompts: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
        """Extract the states of `prompts`, and hold every one against the reference."""
        results = self.generator.generate([list(ids) for ids in prompts])
        self.compare(results, prompts)
        self.assert_nothing_left()
        return results

    def compare(self, results: Sequence[dict[str, Any]], prompts: Sequence[Sequence[int]]) -> None:
        assert [result["input_ids"].tolist() for result in results] == [list(ids) for ids in prompts]
        for index, (ids, result) in enumerate(zip(prompts, results, strict=True)):
            expected = self.reference.states(ids, self.layers)
            found = result["hidden_states"]
            assert [state.shape for state in found] == [state.shape for state in expected]
            assert {state.device.type for state in found} == {"cpu"}
            assert result["loss_mask"] is None
            errors = [relative_error(f, e) for f, e in zip(found, expected, strict=True)]
            assert max(errors) < TOLERANCE[found[0].dtype], f"prompt {index}: errors by layer {errors}"

    def assert_nothing_left(self) -> None:
        assert not self.generator.scheduler.requests
        assert requests_in_workers(self.generator) == [0] * self.generator.tensor_parallel_size


# What plain vLLM itself cannot run on a CPU, and how it says so.
BROKEN_ON_CPU = {
    ("deepseek_v3", "==0.14.*"): "plain vLLM cannot run DeepSeek's experts on a CPU (Current vLLM config is not set)",
    ("kimi_k25", "==0.15.*"): "plain vLLM cannot load Kimi-K2.5 on a CPU (Found no NVIDIA driver)",
}


def why_not(name: str) -> str | None:
    """Why the installed vLLM cannot run a checkpoint here; None if it can."""
    from vllm import ModelRegistry

    if name == "kimi_k25" and "KimiK25ForConditionalGeneration" not in ModelRegistry.get_supported_archs():
        return "this vLLM has no Kimi-K2.5"
    reasons = (reason for (of, releases), reason in BROKEN_ON_CPU.items() if of == name and detect("vllm").within(releases))
    return next(reasons, None)


@contextmanager
def recorded_calls(generator: Any) -> Iterator[list[Any]]:
    """What the workers are asked to do meanwhile."""
    executor, called = inspect.unwrap(generator.executor), []
    rpc = executor.collective_rpc

    def recorded(method: Any, *args: Any, **kwargs: Any) -> Any:
        called.append(method)
        return rpc(method, *args, **kwargs)

    with mock.patch.object(executor, "collective_rpc", recorded):
        yield called


def requests_in_workers(generator: Any) -> list[int]:
    return generator.executor.collective_rpc(held_requests)  # type: ignore[no-any-return]


def run_script(source: str, *arguments: str, timeout: float = 240, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `source` as a user's script, from a file, in a fresh process, with the examples and tests importable.

    A `PYTHONPATH` among the variables comes before these.
    """
    root = Path(__file__).parents[2]
    path = Path(os.environ["PYTEST_TMP"]) / f"script_{abs(hash(source)) % 10**8}.py"
    path.write_text(textwrap.dedent(source))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SPECULATORS_COMPAT_")}
    paths = os.pathsep.join(filter(None, [environment.pop("PYTHONPATH", ""), str(root), str(root / "examples")]))
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        env={**kept, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
