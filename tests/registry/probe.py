"""Examines one architecture: makes its checkpoint, computes the reference, extracts, and compares."""

from __future__ import annotations

import json
import multiprocessing
import os
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from reference import relative_error
from speculators.data_generation import VllmHiddenStatesGenerator
from vllm.platforms import current_platform

import speculators_compat
from speculators_compat import SpeculatorsCompatError
from speculators_compat.prompts import has_recurrent_layers
from tests.cases import prompt
from tests.registry.random_weights import LOAD_FORMAT, RandomWeightsExtension
from tests.registry.recipes import recipe_for
from tests.registry.recipes.recipe import Recipe
from tests.registry.references import PlainVllm, States, transformers_states
from tests.registry.tiny import LAYERS

SHARED = prompt(40, seed=7)
# Shared prefixes, one token, more prompts than ten, and more tokens than one step of TOKENS_PER_STEP holds; then, in caches
# that others have used, one token again.
PROMPTS = [SHARED + prompt(3), SHARED + prompt(7), prompt(1), *(prompt(20 + 7 * seed, seed) for seed in range(12))]
LATER = [prompt(1, 1), prompt(2), prompt(1, 2), SHARED + prompt(4)]
TOKENS_PER_STEP = 160
# In float32 the worst of 162 architectures is at 8e-6.
TOLERANCE = {torch.float32: 3e-5, torch.bfloat16: 0.06}
# Linear attention and state spaces round worse than that in bfloat16, in Hugging Face too; then its rounding is the measure.
ROUNDING_MARGIN = 1.5
# What more would let errors of the wrong token or layer pass (docs/correctness.md).
SHARP_ENOUGH = 0.15


@dataclass
class Row:
    """What came out.

    Attributes:
        architecture: Name in vLLM's registry.
        result: `right`, `WRONG`, `refused`, `FAILED`, or `not run`.
        kind: `text` or `multimodal`.
        reference: What the states were held against.
        run: On what device, in what precision.
        deviation: The largest error of any token's state in any layer, relative to that state's norm.
        rounding: What the model's precision alone makes of it in Hugging Face; None where it runs in float32.
        words: Why, where the result is not `right`.
        seconds: How long it took.
        software: The versions that it ran with.
    """

    architecture: str
    result: str
    reference: str = ""
    run: str = ""
    deviation: float | None = None
    rounding: float | None = None
    words: str = ""
    kind: str = ""
    seconds: float = 0.0
    software: str = ""

    def save(self, path: Path) -> None:
        self.software = ", ".join(str(one) for one in speculators_compat.status().installed)
        path.write_text(json.dumps(asdict(self)))


class TinyGenerator(VllmHiddenStatesGenerator):  # type: ignore[misc]
    """Upstream's generator in the precision of the comparison, with steps small enough to cut prompts into chunks."""

    dtype = torch.float32
    load_format = "auto"

    def _create_vllm_config(self, *args: Any, **kwargs: Any) -> Any:
        config = super()._create_vllm_config(*args, **kwargs)
        config.model_config.dtype = self.dtype
        config.load_config.load_format = self.load_format
        config.parallel_config.worker_extension_cls = f"{RandomWeightsExtension.__module__}.{RandomWeightsExtension.__name__}"
        config.scheduler_config.max_num_batched_tokens = TOKENS_PER_STEP
        # Workers forked from this process have everything imported; vLLM wants them spawned on a CPU, for the sake of threads.
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
        return config


def examine(architecture: str, directory: Path) -> Row:
    """Run one architecture.

    Args:
        architecture: Name in vLLM's registry.
        directory: Scratch space.
    """
    recipe = recipe_for(architecture)
    if recipe is None:
        return Row(architecture, "not run", words="no config that could be shrunken")
    os.environ |= recipe.environment
    dtype = recipe.dtype if current_platform.is_cpu() else torch.bfloat16
    TinyGenerator.dtype = dtype
    TinyGenerator.load_format = "auto" if recipe.model else LOAD_FORMAT
    # transformers keeps remote code by the name of its folder.
    model = directory / architecture
    try:
        elsewhere(lambda: recipe.make(architecture, model, dtype), directory / "made")
    except RuntimeError as error:
        return Row(architecture, "not run", words=f"no checkpoint: {error}")
    expected, found, rounding, reason = None, None, 0.0, ""
    try:
        expected = elsewhere(lambda: _reference_states(recipe, model, dtype), directory / "expected")
        if recipe.model and dtype != torch.float32:
            rounded = elsewhere(lambda: _transformers_states(recipe, model, dtype), directory / "rounded")
            rounding = max(map(max, _deviations(rounded, expected)))
    except RuntimeError as error:
        reason = str(error)
    try:
        found = elsewhere(lambda: _extracted_states(model), directory / "found")
    except RefusedError as error:
        return Row(architecture, "refused", words=str(error))
    except RuntimeError as error:
        try:
            elsewhere(lambda: _plain(model, dtype).prefill(PROMPTS), directory / "plain")
        except RuntimeError as vllm_error:
            return Row(architecture, "not run", words=f"vLLM itself: {vllm_error}")
        return Row(architecture, "FAILED", words=str(error))
    if expected is None:
        return Row(architecture, "not run", words=f"no reference: {reason}")
    # One token is refused where layers are recurrent.
    expected = [rights for states, rights in zip(found, expected, strict=True) if states]
    found = [states for states in found if states]
    if [[s.shape for s in states] for states in found] != [[s.shape for s in states] for states in expected]:
        return Row(architecture, "WRONG", words="states of other shapes than the reference's")
    deviations = _deviations(found, expected)
    print("deviation by prompt and layer:", *deviations, f"by rounding alone: {rounding}", sep="\n")
    deviation = max(map(max, deviations))
    allowed = max(TOLERANCE[dtype], ROUNDING_MARGIN * rounding)
    if deviation < allowed and allowed > SHARP_ENOUGH:
        words = f"ran, and deviates by {deviation:.2f}, but rounding alone does {rounding:.2f}: it could hide an error"
        return Row(architecture, "not run", words=words)
    return Row(
        architecture,
        "right" if deviation < allowed else "WRONG",
        "Hugging Face" if recipe.model else "vLLM, truncated",
        f"{'CPU' if current_platform.is_cpu() else 'GPU'}, {str(dtype).removeprefix('torch.')}",
        deviation,
        rounding or None,
    )


def _deviations(found: States, expected: States) -> list[list[float]]:
    """By prompt and layer, the largest error of a token's state relative to that state's norm."""
    return [
        [relative_error(state, right) for state, right in zip(states, rights, strict=True)]
        for states, rights in zip(found, expected, strict=True)
    ]


def _plain(model: Path, dtype: torch.dtype) -> PlainVllm:
    return PlainVllm(model, dtype, load_format=TinyGenerator.load_format)


def _reference_states(recipe: Recipe, model: Path, dtype: torch.dtype) -> States:
    if not recipe.model:
        return _plain(model, dtype).states(PROMPTS + LATER)
    return _transformers_states(recipe, model, torch.float32)


def _transformers_states(recipe: Recipe, model: Path, dtype: torch.dtype) -> States:
    model_class = getattr(transformers, recipe.model)
    loaded = model_class.from_pretrained(model, dtype=dtype, attn_implementation="eager")
    return transformers_states(loaded.eval(), PROMPTS + LATER)


def _extracted_states(model: Path) -> States:
    try:
        generator = TinyGenerator(
            str(model), layer_ids=list(range(LAYERS)), max_model_len=TOKENS_PER_STEP, gpu_memory_utilization=0.1
        )
    except SpeculatorsCompatError as error:
        raise RefusedError from error
    shortest = 2 if has_recurrent_layers(generator.vllm_config.model_config) else 1
    states: States = []
    try:
        for batch in (PROMPTS, LATER):
            results = iter(generator.generate([ids for ids in batch if len(ids) >= shortest]))
            states += [next(results)["hidden_states"] if len(ids) >= shortest else [] for ids in batch]
        return states
    finally:
        generator.executor.shutdown()


class RefusedError(RuntimeError):
    """The generator was refused when it was to be built, by an error of this package."""


def elsewhere(compute: Callable[[], Any], path: Path) -> Any:
    """What `compute` returns in a forked process: vLLM leaves CUDA and its distributed groups initialised behind it.

    Args:
        compute: Returns something that torch can save.
        path: A file that does not exist yet.

    Raises:
        RefusedError: If `compute` does.
        RuntimeError: With the words of anything else that it raises.
    """

    def run() -> None:
        try:
            outcome: tuple[Any, type[RuntimeError] | None, str] = (compute(), None, "")
        except RefusedError as error:
            outcome = (None, RefusedError, _words(error.__cause__ or error))
        except Exception as error:  # noqa: BLE001 - whatever it is, its words are wanted
            traceback.print_exc()
            outcome = (None, RuntimeError, _words(error))
        torch.save(outcome, path)

    process = multiprocessing.get_context("fork").Process(target=run)
    process.start()
    process.join()
    if not path.exists():
        raise RuntimeError(f"the process ended with {process.exitcode}")
    value, error_class, words = torch.load(path, weights_only=False)
    if error_class is not None:
        raise error_class(words)
    return value


def _words(error: BaseException) -> str:
    """The error, shortened to what says why."""
    text = str(error).strip() or type(error).__name__
    return f"{type(error).__name__}: {text}".replace("\n", " ")[:300]
