"""A limit: vLLM's own prefill with the engine in the caller's process, which has all prompts before its first step."""

from __future__ import annotations

import os

from benchmarks.peers import Peer
from benchmarks.peers.vllm_prefill import Prefill
from benchmarks.settings import Settings


def start(settings: Settings) -> Peer:
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return Prefill(settings)
