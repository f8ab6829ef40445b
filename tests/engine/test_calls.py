"""How people call the class: everything here is public code's way of doing it, and has to run unchanged."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import threading
import typing
from typing import Any

import numpy as np
import pytest
import torch
from speculators.data_generation import VllmHiddenStatesGenerator
from speculators.data_generation import vllm_hidden_states_generator as upstream
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

import speculators_compat
from speculators_compat import CaptureError, PromptError
from speculators_compat.detection import detect
from tests.engine.support import Extractor, prompt, requests_in_workers


def test_the_class_stays_a_plain_class(llama: Extractor) -> None:
    assert type(VllmHiddenStatesGenerator) is type
    assert upstream.VllmHiddenStatesGenerator is VllmHiddenStatesGenerator
    assert isinstance(llama.generator, VllmHiddenStatesGenerator)
    assert pickle.loads(pickle.dumps(VllmHiddenStatesGenerator)) is VllmHiddenStatesGenerator

    def annotated(generator: VllmHiddenStatesGenerator | None) -> None: ...

    assert typing.get_type_hints(annotated)["generator"] == VllmHiddenStatesGenerator | None


def test_attributes_that_users_read(llama: Extractor) -> None:
    generator = llama.generator
    assert generator.tensor_parallel_size == 1
    assert generator.layer_ids == [0, 2, 3, 4]
    assert generator.tokenizer.eos_token_id == 258
    assert generator.vllm_config.cache_config.gpu_memory_utilization == 0.8
    assert isinstance(generator.executor, MultiprocExecutor)
    assert isinstance(generator.scheduler, Scheduler)
    before = generator._request_counter
    llama.check([prompt(5)])
    assert generator._request_counter == before + 1
    assert generator.model_path.endswith("llama")
    if detect("speculators").within(">=0.4"):
        assert callable(generator.block_hasher)


def test_resetting_the_prefix_cache(llama: Extractor) -> None:
    llama.check([prompt(30)])
    assert llama.generator.scheduler.reset_prefix_cache()
    assert llama.generator.scheduler.kv_cache_manager.reset_prefix_cache()
    llama.check([prompt(30)])


IDS = [prompt(6, 1), prompt(6, 2)]


@pytest.mark.parametrize(
    "given",
    [
        IDS,
        tuple(IDS),
        torch.tensor(IDS),
        torch.tensor(IDS, dtype=torch.int32),
        np.array(IDS),
        [torch.tensor(ids) for ids in IDS],
        [np.array(ids, dtype=np.uint16) for ids in IDS],
        [tuple(ids) for ids in IDS],
        [[np.int64(token) for token in ids] for ids in IDS],
        [[torch.tensor(token) for token in ids] for ids in IDS],
    ],
    ids=["lists", "tuple", "tensor", "int32", "array", "tensors", "uint16", "tuples", "numpy ints", "0-d tensors"],
)
def test_forms_of_prompts(llama: Extractor, given: Any) -> None:
    llama.compare(llama.generator.generate(token_ids=given), IDS)


def test_ragged_tensors(llama: Extractor) -> None:
    ragged = [prompt(4), prompt(9)]
    llama.compare(llama.generator.generate([torch.tensor(ids) for ids in ragged]), ragged)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "token_ids cannot be empty"),
        (torch.empty(0, 4, dtype=torch.long), "token_ids cannot be empty"),
        (None, "token_ids is None"),
        ("text", "token_ids is str"),
        ({"a": [1]}, "token_ids is dict"),
        (torch.tensor(3), "token_ids is Tensor"),
        ([1, 2, 3], "prompt 0 is 1"),
        (torch.tensor([1, 2, 3]), "prompt 0 is tensor"),
        ([[1, 2], []], "prompt 1 is empty"),
        ([[1, 2], [3, -1]], "prompt 1, position 1: token id -1"),
        ([[1, 512]], "prompt 0, position 1: token id 512 is outside the vocabulary, 0 to 511"),
        ([[1, 2.0]], "prompt 0, position 1: found 2.0 of type float"),
        (torch.tensor([[1.0, 2.0]]), "prompt 0, position 0: found 1.0 of type float"),
        ([[True, False]], "prompt 0, position 0: found True of type bool"),
        ([[[1, 2]]], "nested too deep"),
        (torch.zeros(1, 2, 3, dtype=torch.long), "nested too deep"),
        ([[1, None]], "prompt 0, position 1: found None"),
        ([[1], "ab"], "prompt 1 is 'ab'"),
    ],
)
def test_bad_prompts_are_refused_and_lose_nothing(llama: Extractor, given: Any, words: str) -> None:
    before = llama.generator._request_counter
    with pytest.raises(PromptError, match=words.replace("(", r"\(")) as caught:
        llama.generator.generate(given)
    assert isinstance(caught.value, ValueError)
    assert llama.generator._request_counter == before
    llama.check([prompt(5)])


def test_long_prompts_are_cut_as_upstream_cuts_them(llama: Extractor) -> None:
    longer = prompt(1500)
    llama.compare(llama.generator.generate([longer, prompt(3)]), [longer[:1099], prompt(3)])


def test_a_background_thread(llama: Extractor) -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.extend(llama.generator.generate(IDS)))
    thread.start()
    thread.join()
    llama.compare(results, IDS)


def test_two_threads_at_once(llama: Extractor) -> None:
    batches = [[prompt(20, seed), prompt(30, seed)] for seed in range(4)]
    results: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda index=index: results.update({index: llama.generator.generate(batches[index])}))
        for index in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, batch in enumerate(batches):
        llama.compare(results[index], batch)


def test_a_growing_conversation_needs_no_stitching(llama: Extractor) -> None:
    """One call per prefix of a conversation, as a wrapper does that stitches missing states from earlier answers."""
    conversation = prompt(300)
    for end in range(50, 301, 50):
        (result,) = llama.generator.generate([conversation[:end]])
        assert {len(state) for state in result["hidden_states"]} == {end}
        llama.compare([result], [conversation[:end]])


def test_batches_of_the_offline_script(llama: Extractor) -> None:
    """Batches of eight; loss masks are attached by position in the answer."""
    prompts = [prompt(10 + seed, seed) for seed in range(20)]
    masks = [torch.full((len(ids),), index) for index, ids in enumerate(prompts)]
    for start in range(0, len(prompts), 8):
        results = llama.generator.generate(prompts[start : start + 8])
        for offset, result in enumerate(results):
            result["loss_mask"] = masks[start + offset]
            assert result["input_ids"].tolist() == prompts[start + offset]
            assert len(result["loss_mask"]) == len(result["hidden_states"][0])


def test_users_replacements_of_module_names_take_part(llama: Extractor, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    ours = upstream.Request

    def request_that_tells(*args: Any, **kwargs: Any) -> Any:
        seen.append(kwargs["request_id"])
        return ours(*args, **kwargs)

    monkeypatch.setattr(upstream, "Request", request_that_tells)
    llama.check([prompt(5), prompt(20)])
    assert len(seen) == 2


def test_an_interrupt_in_the_middle(llama: Extractor) -> None:
    """KeyboardInterrupt while the workers run: the next call is right, and nothing is left of the interrupted one."""
    prompts = [prompt(1000, seed) for seed in range(60)]
    workers = [process.pid for process in multiprocessing.active_children() if "Worker" in process.name]
    assert len(workers) == 1

    def press_ctrl_c() -> None:
        for pid in (*workers, os.getpid()):
            os.kill(pid, signal.SIGINT)

    # A test run in the background ignores SIGINT.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    timer = threading.Timer(0.6, press_ctrl_c)
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            for _ in range(50):
                llama.generator.generate(prompts)
    finally:
        signal.signal(signal.SIGINT, before)
    llama.assert_nothing_left()
    llama.check([prompt(33), prompt(44)])


@pytest.mark.parametrize("method", ["_reset_capture", "_get_captured_states"])
def test_an_exception_in_the_middle(llama: Extractor, monkeypatch: pytest.MonkeyPatch, method: str) -> None:
    inner = llama.generator.executor.__wrapped__
    rpc = inner.collective_rpc
    failures = [OSError("the network is gone")]

    def failing(name: Any, *args: Any, **kwargs: Any) -> Any:
        if name == method and failures:
            raise failures.pop()
        return rpc(name, *args, **kwargs)

    monkeypatch.setattr(inner, "collective_rpc", failing)
    with pytest.raises(OSError, match="network"):
        llama.generator.generate([prompt(50)] * 40)
    monkeypatch.undo()
    llama.assert_nothing_left()
    llama.check([prompt(33), prompt(44)])


def test_an_exception_in_a_worker(llama: Extractor) -> None:
    """A worker that cannot attribute rows says so; no states are returned, and the next call is right."""

    def break_once(worker: Any) -> None:
        capture = worker._capture
        capture._carry = lambda rows, ready: (delattr(capture, "_carry"), 1 / 0)

    llama.generator.executor.collective_rpc(break_once)
    with pytest.raises(CaptureError, match="division by zero"):
        llama.generator.generate([prompt(50), prompt(60)])
    llama.assert_nothing_left()
    llama.check([prompt(33), prompt(44)])


def test_a_state_that_is_missing_is_an_error(llama: Extractor) -> None:
    def forget_a_token(worker: Any) -> None:
        capture = worker._capture
        end = capture.end

        def forgetful() -> Any:
            captured = end()
            next(iter(captured.prompts.values())).computed[7] = 0
            del capture.end
            return captured

        capture.end = forgetful

    llama.generator.executor.collective_rpc(forget_a_token)
    with pytest.raises(CaptureError, match="prompt 0 .* has 50 tokens, but hidden states of 49 were captured"):
        llama.generator.generate([prompt(50), prompt(60)])
    llama.check([prompt(50)])


def test_a_prompt_that_does_not_fit_into_the_kv_cache(llama: Extractor, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = llama.generator.scheduler.kv_cache_manager
    allocate = manager.allocate_slots
    monkeypatch.setattr(
        manager,
        "allocate_slots",
        lambda request, *args, **kwargs: None if request.num_prompt_tokens > 25 else allocate(request, *args, **kwargs),
    )
    with pytest.raises(CaptureError, match="prompt 1 .* of 30 tokens cannot be scheduled, and holds up 1 others"):
        llama.generator.generate([prompt(20), prompt(30), prompt(10)])
    monkeypatch.undo()
    llama.check([prompt(30)])


def test_the_kv_cache_stays_within_what_the_platform_allows(llama: Extractor) -> None:
    """On a CPU that is VLLM_CPU_KVCACHE_SPACE, in GiB, of which upstream takes a part."""
    config = llama.generator.scheduler.kv_cache_config
    allowed = int(os.environ["VLLM_CPU_KVCACHE_SPACE"]) * 2**30 * 0.8 * upstream.CACHE_MEMORY_FRACTION
    assert allowed / 2 < sum(tensor.size for tensor in config.kv_cache_tensors) <= allowed


def test_capture_is_off_between_calls(llama: Extractor) -> None:
    llama.check([prompt(5)])
    assert llama.generator.executor.collective_rpc(lambda worker: worker._capture.captured is None) == [True]
    assert requests_in_workers(llama.generator) == [0]


def test_status_says_what_is_applied() -> None:
    status = speculators_compat.status()
    assert status.active
    assert not status.missing
    assert {decision.state.value for decision in status.decisions} <= {"applied", "not needed"}
    assert "decoder_signature: applied" in str(status)
