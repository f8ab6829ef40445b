"""What holds states against each other does not pass over one that is no number, wherever it stands."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from reference import relative_error

from speculators_compat.preflight.trial import deviation


@pytest.mark.parametrize("compare", [relative_error, deviation])
@pytest.mark.parametrize("token", range(3))
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_infinitely_wrong(
    compare: Callable[[torch.Tensor, torch.Tensor], float], token: int, value: float
) -> None:
    right = torch.ones(3, 4)
    found = right.clone()
    found[token, 1] = value
    assert compare(right, right) == 0
    assert compare(found, right) == math.inf
