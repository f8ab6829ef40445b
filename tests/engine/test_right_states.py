"""Every case that the fixes people paste together get silently wrong, and the batches in between."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.support import Extractor, prompt

SHARED = prompt(40, seed=7)


def test_prompts_that_share_a_prefix_in_one_batch(llama: Extractor) -> None:
    llama.check([SHARED + prompt(3), SHARED + prompt(7)])


def test_the_same_prefix_in_a_later_call(llama: Extractor) -> None:
    llama.check([SHARED + prompt(4)])
    llama.check([SHARED + prompt(5)])


def test_the_same_prompt_again_and_twice_in_a_batch(llama: Extractor) -> None:
    first = llama.check([prompt(64), prompt(64)])
    second = llama.check([prompt(64)])
    for states in zip(*(result["hidden_states"] for result in (*first, *second)), strict=True):
        assert torch.allclose(states[0], states[1], atol=1e-4)
        assert torch.allclose(states[0], states[2], atol=1e-4)


def test_more_tokens_than_a_step_holds(llama: Extractor) -> None:
    """18 times 500 is more than max_num_batched_tokens (8192): prefill is chunked."""
    llama.check([prompt(500, seed) for seed in range(18)])


def test_chunks_of_fewer_prompts_than_ten(llama: Extractor) -> None:
    llama.check([prompt(1000, seed) for seed in range(9)])


def test_more_prompts_than_ten_in_input_order(llama: Extractor) -> None:
    llama.check([prompt(5 + seed, seed) for seed in range(12)])


@pytest.mark.parametrize("count", [1, 2, 32, 33, 100])
def test_more_prompts_than_run_at_once(llama: Extractor, count: int) -> None:
    llama.check([prompt(3 + seed % 7, seed) for seed in range(count)])


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 127, 128, 129, 1000])
def test_lengths_around_the_block_size(llama: Extractor, length: int) -> None:
    llama.check([prompt(length)])


def test_lengths_of_all_kinds_in_one_batch(llama: Extractor) -> None:
    llama.check([prompt(length, seed) for seed, length in enumerate([1, 900, 16, 2, 1, 333, 17, 64, 1000, 5, 1])])


def test_many_calls_leave_nothing_behind(llama: Extractor) -> None:
    for seed in range(6):
        llama.check([prompt(10, seed + 10 * index) for index in range(8)])


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.lists(
        st.tuples(st.sampled_from([0, 0, 16, 40, 130]), st.integers(1, 400), st.integers(0, 10**6)),
        min_size=1,
        max_size=60,
    )
)
def test_random_batches(llama: Extractor, batch: list[tuple[int, int, int]]) -> None:
    """Prompts of random lengths, which share prefixes of random lengths."""
    llama.check([prompt(200, seed=9)[:shared] + prompt(length, seed) for shared, length, seed in batch])
