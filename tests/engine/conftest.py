"""Fixtures of the tests that run real vLLM in real worker processes, on a CPU, from tiny checkpoints of real architectures."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm")

pytest.register_assert_rewrite("tests.engine.support")

import speculators_compat  # noqa: E402, F401  the line that users add
from tests.engine.support import Extractor  # noqa: E402

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
# Threads that wait for work by spinning take the cores from whatever else runs: half a minute for a call on a busy machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("KMP_BLOCKTIME", "0")
# MLA has no CPU kernel; DeepSeek and Kimi run as multi-head attention there.
os.environ.setdefault("VLLM_MLA_DISABLE", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.engine)
            # By a thread: what a signal's handler raises waits for the workers' reply, which may never come.
            item.add_marker(pytest.mark.timeout(300, method="thread"))


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tiny checkpoints are."""
    return Path(os.environ.get("SPECULATORS_COMPAT_TEST_CHECKPOINTS") or tmp_path_factory.mktemp("checkpoints"))


@pytest.fixture(scope="module")
def llama(checkpoints: Path) -> Iterator[Extractor]:
    """A generator on a Llama in float32, in which vLLM and Hugging Face agree to six digits."""
    with Extractor(checkpoints, "llama", float32=True) as extractor:
        yield extractor


@pytest.fixture(autouse=True)
def _no_generator_left() -> Iterator[Any]:
    yield
    gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _script_directory(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["PYTEST_TMP"] = str(tmp_path_factory.mktemp("scripts"))
