"""Batches that fixes in circulation get silently wrong, shared by the tests on a CPU and on GPUs."""

from __future__ import annotations

import torch

# The largest error of any token, relative to its state's norm; see docs/correctness.md for the measured distribution.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 0.01, torch.bfloat16: 0.06}


def prompt(length: int, seed: int = 0) -> list[int]:
    """A prompt of random bytes; the same for the same arguments."""
    return torch.randint(0, 256, (length,), generator=torch.Generator().manual_seed(1000 * seed + length)).tolist()


SHARED = prompt(40, seed=7)

# Each case is a list of calls, each call a list of prompts.
CASES: dict[str, list[list[list[int]]]] = {
    "a prefix shared in a batch": [[SHARED + prompt(3), SHARED + prompt(7)]],
    "a prefix shared with an earlier call": [[SHARED + prompt(4)], [SHARED + prompt(5)]],
    "the same prompt twice": [[prompt(64), prompt(64)], [prompt(64)]],
    "more tokens than a step holds": [[prompt(500, seed) for seed in range(18)]],
    "chunks of fewer than ten prompts": [[prompt(1000, seed) for seed in range(9)]],
    "more than ten prompts": [[prompt(5 + seed, seed) for seed in range(12)]],
    "more prompts than run at once": [[prompt(3 + seed % 7, seed) for seed in range(count)] for count in (1, 2, 32, 33, 100)],
    "lengths around the block size": [[prompt(length)] for length in (1, 2, 15, 16, 17, 63, 64, 65, 127, 128, 129, 1000)],
    "lengths of all kinds": [[prompt(length, seed) for seed, length in enumerate([1, 900, 16, 2, 1, 333, 17, 64, 1000, 5, 1])]],
}
