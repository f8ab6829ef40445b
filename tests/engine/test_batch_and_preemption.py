"""States do not depend on what else is in the batch, nor on being computed twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.support import Extractor, Float32Generator, prompt


def test_a_prompt_alone_equals_itself_in_a_batch(checkpoints: Path) -> None:
    """In bfloat16, vLLM on a CPU does not depend on the rest of the batch; so these must be equal to the last bit."""
    with Extractor(checkpoints, "llama") as extractor:
        prompts = [prompt(length, seed) for seed, length in enumerate([1, 5, 43, 500, 800, 17])]
        together = extractor.check(prompts * 6)
        for index, alone in enumerate(prompts):
            (result,) = extractor.check([alone])
            for copy in range(6):
                found = together[index + copy * len(prompts)]["hidden_states"]
                assert all(torch.equal(a, b) for a, b in zip(found, result["hidden_states"], strict=True))


@pytest.mark.matrix
def test_preempted_prompts_are_computed_again(checkpoints: Path) -> None:
    """A KV cache of 1280 tokens holds one prompt and a half, and prompts advance together by 100 tokens: some are preempted."""

    class CrampedGenerator(Float32Generator):
        def _create_vllm_config(self, *args: Any, **kwargs: Any) -> Any:
            config = super()._create_vllm_config(*args, **kwargs)
            config.cache_config.num_gpu_blocks_override = 1280 // config.cache_config.block_size
            config.scheduler_config.long_prefill_token_threshold = 100
            return config

    with Extractor(checkpoints, "llama", generator=CrampedGenerator) as extractor:
        if not extractor.generator.vllm_config.scheduler_config.enable_chunked_prefill:
            pytest.skip("this vLLM does not cut prompts")
        scheduler = extractor.generator.scheduler.__wrapped__.__wrapped__
        schedule, scheduled = scheduler.schedule, 0

        def counted(*args: Any, **kwargs: Any) -> Any:
            nonlocal scheduled
            output = schedule(*args, **kwargs)
            scheduled += output.total_num_scheduled_tokens
            return output

        scheduler.schedule = counted
        prompts = [prompt(length, seed) for seed, length in enumerate([800, 700, 40, 900, 5, 600, 16, 750])]
        extractor.check(prompts)
        extractor.check(prompts[::-1])
        assert scheduled > 2 * sum(map(len, prompts)), "nothing was computed twice"
