"""What users pass as prompts and layers; tensors and arrays are tested on the engine."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculators_compat.errors import LayerError, PromptError
from speculators_compat.prompts import check_layer_ids, normalize_prompts, placeholder_tokens

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


def test_a_placeholder_is_refused_with_its_place_and_name() -> None:
    config = SimpleNamespace(
        image_token_id=90,
        vision_start_token_id=3,
        bos_token_id=1,
        thinker_config=SimpleNamespace(model_type="thinker", audio_token_index=91, video_token_id=None),
    )
    placeholders = placeholder_tokens(config)
    assert placeholders == {90: "image_token_id", 91: "audio_token_index"}
    assert normalize_prompts([[3, 1, 89]], 100, placeholders) == [[3, 1, 89]]
    with pytest.raises(PromptError, match=r"prompt 1, position 2: token id 91 is a placeholder \(audio_token_index\)"):
        normalize_prompts([[1, 2], [5, 6, 91, 90]], 100, {91: "audio_token_index"})


def test_a_prompt_of_one_token_is_refused_where_layers_are_recurrent() -> None:
    assert normalize_prompts([[1], [2, 3]], VOCABULARY) == [[1], [2, 3]]
    with pytest.raises(PromptError, match="prompt 1 has 1 token, expected at least 2"):
        normalize_prompts([[2, 3], [1]], VOCABULARY, recurrent=True)
