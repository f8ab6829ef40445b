"""A limit: vLLM's own prefill of the same prompts, which makes no states. One token is sampled of each, as it has to be.

Its engine is a process of its own, as by default, and begins with the first prompts that it is sent: a small batch may be run
in two steps where one would do.
"""

from __future__ import annotations

import os

from benchmarks.peers import Peer
from benchmarks.peers.in_worker import peak_gpu_bytes
from benchmarks.settings import Prompts, Settings


class Prefill(Peer):
    def __init__(self, settings: Settings) -> None:
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # for peak_gpu_bytes
        from vllm import LLM, SamplingParams

        self.llm = LLM(
            settings.model,
            max_model_len=settings.max_model_len,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_num_seqs=settings.max_num_seqs,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            tensor_parallel_size=settings.tensor_parallel_size,
            load_format="dummy" if settings.random_weights else "auto",
            enforce_eager=True,
            enable_prefix_caching=False,
            block_size=settings.block_size,
        )
        self.one_token = SamplingParams(max_tokens=1, temperature=0, detokenize=False)

    def run(self, prompts: Prompts) -> None:
        self.llm.generate([{"prompt_token_ids": ids} for ids in prompts], self.one_token, use_tqdm=False)

    def peak_gpu_bytes(self) -> int | None:
        peaks: list[int | None] = self.llm.collective_rpc(peak_gpu_bytes)
        return peaks[0]


def start(settings: Settings) -> Peer:
    return Prefill(settings)
