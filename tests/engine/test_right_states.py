"""Every case that the fixes people paste together get silently wrong, and the batches in between."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cases import CASES
from tests.engine.support import Extractor, prompt


@pytest.mark.matrix
@pytest.mark.parametrize("name", CASES)
def test_states_are_right(llama: Extractor, name: str) -> None:
    for batch in CASES[name]:
        llama.check(batch)


@pytest.mark.matrix
def test_the_same_prompt_again_and_twice_in_a_batch(llama: Extractor) -> None:
    first = llama.check([prompt(64), prompt(64)])
    second = llama.check([prompt(64)])
    for states in zip(*(result["hidden_states"] for result in (*first, *second)), strict=True):
        assert torch.allclose(states[0], states[1], atol=1e-4)
        assert torch.allclose(states[0], states[2], atol=1e-4)


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
