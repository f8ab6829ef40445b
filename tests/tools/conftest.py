"""The commands' tests run what the engine tests run, in the same environment, where there is a vLLM."""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("vllm") is not None:
    from tests.engine.conftest import *  # noqa: F403
