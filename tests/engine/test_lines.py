"""That speculators 0.4.0 differs from 0.4.0.1 outside of extraction only, so that the matrix need not run both."""

from __future__ import annotations

import hashlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from speculators_compat.detection import detect
from speculators_compat.import_hooks import GENERATOR_MODULE, WORKER_MODULE

OF_BOTH = {
    GENERATOR_MODULE: "a4c48d8c93526d8a8eef4cba220be209798b71d3b54ee5b347d13e360a2e312e",
    WORKER_MODULE: "6bc791477d99cc885e9344f47f7a6bcd1f0b1377a453ebb11d368999aa08df1e",
}


@pytest.mark.skipif(not detect("speculators").within(">=0.4"), reason="0.3 has no sister")
@pytest.mark.parametrize("module", OF_BOTH)
def test_the_modules_of_extraction_are_the_same_in_both(module: str) -> None:
    path = Path(find_spec(module).origin)  # type: ignore[union-attr, arg-type]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == OF_BOTH[module]
