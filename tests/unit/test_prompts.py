"""What users pass as prompts and layers; tensors and arrays are tested on the engine."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculators_compat.errors import LayerError, PromptError
from speculators_compat.prompts import check_layer_ids, normalize_prompts

VOCABULARY = 100
IDS = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)


@given(st.lists(IDS, min_size=1, max_size=5))
def test_good_prompts_come_back_as_they_are(prompts: list[list[int]]) -> None:
    assert normalize_prompts(prompts, VOCABULARY) == prompts
    assert normalize_prompts(tuple(map(tuple, prompts)), VOCABULARY) == prompts


@given(st.lists(IDS, min_size=1, max_size=5), st.data())
def test_one_bad_token_is_named_by_prompt_and_position(prompts: list[list[int]], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(prompts) - 1))
    position = data.draw(st.integers(0, len(prompts[index]) - 1))
    bad = data.draw(st.sampled_from([-1, VOCABULARY, 2**70, 1.0, None, "1", True, [1], float("nan")]))
    prompts[index][position] = bad
    with pytest.raises(PromptError, match=f"prompt {index}, position {position}: "):
        normalize_prompts(prompts, VOCABULARY)


def test_the_callers_lists_are_not_changed() -> None:
    class Id:
        def __index__(self) -> int:
            return 7

    prompts = [[Id(), 1]]
    assert normalize_prompts(prompts, VOCABULARY) == [[7, 1]]
    assert isinstance(prompts[0][0], Id)


@pytest.mark.parametrize("layers", [[0], [0, 3, 5], range(4), (1, 2)])
def test_good_layers(layers: object, caplog: pytest.LogCaptureFixture) -> None:
    check_layer_ids(layers)  # type: ignore[arg-type]
    assert not caplog.records


@pytest.mark.parametrize("layers", [[], "12", 3, [0.5], [True], [None]])
def test_bad_layers(layers: object) -> None:
    with pytest.raises(LayerError):
        check_layer_ids(layers)  # type: ignore[arg-type]


def test_unsorted_and_repeated_layers_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        check_layer_ids([5, 2, 5])
    assert "ascending order, once per layer: [2, 5]" in caplog.text
