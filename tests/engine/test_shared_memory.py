"""States travel from the worker in memory that the caller maps: they are the caller's own, and nothing is left or lost."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculators_compat.delivery import Rows, _own, in_memory
from speculators_compat.errors import CaptureError
from speculators_compat.worker.capture import Capture, PromptStates, _joined
from speculators_compat.worker.model_runner import RowSpan
from speculators_compat.worker.offload import THREADS, Offload
from speculators_compat.worker.shared_memory import SLAB_BYTES, Extent, SharedMemory, Slab
from tests.engine.support import Extractor, prompt, run_script

PROMPTS = [prompt(300, seed) for seed in range(16)]
SETTLING = 0.5  # seconds: memory is let go by a thread
steps = st.lists(st.lists(st.integers(1, 40) | st.just(3000), min_size=1, max_size=20), min_size=1, max_size=6)


@given(steps=steps, width=st.integers(1, 64), dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
@settings(max_examples=50, deadline=None)
def test_prompts_do_not_overlap(steps: list[list[int]], width: int, dtype: torch.dtype) -> None:
    memory = SharedMemory()
    given = [extent for tokens in steps for group in memory.empty(3, tokens, (width,), dtype) for extent in group]
    shapes = [(count, width) for tokens in steps for count in tokens]
    for number, (extent, shape) in enumerate(zip(given, shapes, strict=True)):
        for index in range(3):
            rows = torch.full(shape, number + index / 4, dtype=dtype)
            extent.write(index, shape[0] // 2, rows[shape[0] // 2 :])
            extent.write(index, 0, rows[: shape[0] // 2])
    mapped = {extent.slab: extent.slab.map() for extent in given}
    for number, (extent, shape) in enumerate(zip(given, shapes, strict=True)):
        for index, layer in enumerate(extent.tensors(mapped[extent.slab])):
            assert layer.shape == shape
            assert bool((layer == torch.tensor(number + index / 4, dtype=dtype)).all())
    memory.close()


def _one(memory: SharedMemory, layers: int, shape: tuple[int, int], dtype: torch.dtype) -> Extent:
    ((extent,),) = memory.empty(layers, shape[:1], shape[1:], dtype)
    return extent


def test_small_prompts_of_a_step_are_one_to_write_to() -> None:
    """Where a step has many prompts, a write for each of them is what takes the time."""
    memory = SharedMemory()
    ((first, second, third),) = memory.empty(2, [1, 3, 2], (8,), torch.float32)
    other = _one(memory, 2, (4, 8), torch.float32)
    joined = first.joined(second)
    assert joined is not None
    assert (first.joined(third), second.joined(first), joined.joined(other), third.joined(other)) == (None,) * 4
    rows = torch.arange(32.0).view(4, 8)
    joined.write(0, 0, rows)
    joined.write(1, 0, rows + 100)
    with pytest.raises(CaptureError, match="expected the same dtype and width"):
        joined.write(0, 1, rows)
    mapped = first.slab.map()
    for extent, expected in ((first, rows[:1]), (second, rows[1:])):
        assert all(map(torch.equal, extent.tensors(mapped), (expected, expected + 100)))
    assert not any(layer.any() for layer in third.tensors(mapped))
    memory.close()


def test_places_are_joined_only_where_rows_and_memory_go_on() -> None:
    memory = SharedMemory()
    (extents,) = memory.empty(2, [3, 3, 3, 3], (8,), torch.float32)
    prompts = [PromptStates([], bytearray(3), extent) for extent in extents]
    spans = [RowSpan("a", 0, 3, 0, 3), RowSpan("b", 3, 3, 0, 3), RowSpan("c", 6, 2, 0, 3), RowSpan("d", 8, 3, 0, 3)]
    written = [(span.row, span.count, prompt.extent) for span, prompt in _joined(zip(spans, prompts, strict=True))]
    assert written == [(0, 8, extents[0].joined(extents[1]).joined(extents[2])), (8, 3, extents[3])]  # type: ignore[union-attr]
    apart = [replace(spans[0], row=5), replace(spans[1], row=9), replace(spans[2], position=1), replace(spans[3], row=11)]
    assert len(_joined(zip(apart, prompts, strict=True))) == 4
    pickled = PromptStates([torch.zeros(3, 8)] * 2, bytearray(3))
    assert len(_joined(zip(spans, [prompts[0], pickled, pickled, prompts[3]], strict=True))) == 4
    memory.close()


@pytest.mark.parametrize(
    "rows", [torch.ones(2, 8), torch.ones(2, 9, dtype=torch.bfloat16), torch.ones(5, 8, dtype=torch.bfloat16)]
)
def test_rows_that_do_not_fit_are_refused(rows: torch.Tensor) -> None:
    """They would be written over another prompt's."""
    memory = SharedMemory()
    extent = _one(memory, 1, (4, 8), torch.bfloat16)
    with pytest.raises(CaptureError, match="expected the same dtype and width"):
        extent.write(0, 0, rows)
    memory.close()


def test_what_has_been_written_stays_when_memory_is_got_afterwards() -> None:
    memory = SharedMemory()
    extent = _one(memory, 2, (1000, 64), torch.float32)
    extent.write(1, 500, torch.full((500, 64), 3.0))
    before = os.fstat(extent.slab.descriptor).st_blocks
    extent.allocate()
    assert os.fstat(extent.slab.descriptor).st_blocks * 512 >= 2 * 1000 * 64 * 4 > before * 512
    first, second = extent.tensors(extent.slab.map())
    assert bool((second[500:] == 3).all())
    assert not first.any()
    memory.close()


def test_everything_has_ended_before_memory_is_let_go() -> None:
    """A thread that is late would write to a descriptor that is another file's by then."""
    offload, ended = Offload(), []
    offload.meanwhile(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    for number in range(2 * THREADS):
        offload.meanwhile(lambda number=number: (time.sleep(0.02), ended.append(number)))  # type: ignore[misc]
    assert isinstance(offload.finish(), ZeroDivisionError)
    assert sorted(ended) == list(range(2 * THREADS))
    assert offload.finish() is None
    offload.close()


def test_slabs_stay_few_however_many_prompts_there_are() -> None:
    """Nothing is written, so nothing is used: a terabyte of states in slabs that one process can open and map."""
    memory = SharedMemory()
    slabs = {_one(memory, 4, (2048, 8192), torch.bfloat16).slab for _ in range(8 * 1024)}
    assert sum(slab.size for slab in slabs) >= 2**40
    assert len(slabs) < 900
    memory.close()
    memory = SharedMemory()
    slabs = {_one(memory, 4, (16, 64), torch.bfloat16).slab for _ in range(2000)}
    assert {slab.size for slab in slabs} == {SLAB_BYTES}
    memory.close()


def test_memory_that_was_let_go_stays_with_whom_has_mapped_it() -> None:
    memory = SharedMemory()
    extent = _one(memory, 1, (4, 8), torch.float32)
    extent.write(0, 0, torch.full((4, 8), 7.0))
    (mapped,) = extent.tensors(extent.slab.map())
    memory.close()
    memory.close()  # which waits for the first
    with pytest.raises(OSError, match="fd"):
        extent.slab.map()
    assert bool((mapped == 7).all())


def test_memory_is_let_go_where_no_thread_can_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = SharedMemory()
    slabs = [_one(memory, 1, (4, 8), torch.float32).slab for _ in range(2)]

    def no_thread(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_thread)
        memory.close()
    with pytest.raises(OSError, match="fd"):
        slabs[0].map()
    memory.close()


def test_what_is_written_after_memory_has_been_mapped_is_there() -> None:
    """The caller maps while the device still computes; that is a copy on write, but nobody has written to it."""
    memory = SharedMemory()
    extent = _one(memory, 2, (600, 64), torch.float32)
    (states,) = in_memory([extent]).values()
    for layer in range(2):
        extent.write(layer, 0, torch.full((600, 64), layer + 1.0))
    extent.allocate()
    assert [bool((state == layer + 1).all()) for layer, state in enumerate(states)] == [True, True]
    memory.close()


def test_a_file_that_took_the_descriptor_is_not_taken_for_the_one_before() -> None:
    first, second = Slab.make(4096), Slab.make(4096)
    os.dup2(second.descriptor, first.descriptor)
    with pytest.raises(FileNotFoundError, match="is not the file that it was"):
        first.map()
    os.close(first.descriptor)
    os.close(second.descriptor)


def _write_and_wait(connection: Connection) -> None:
    extent = _one(SharedMemory(), 1, (4, 8), torch.float32)
    extent.write(0, 0, torch.full((4, 8), 7.0))
    connection.send(extent)
    connection.recv()


def test_states_outlive_a_worker_that_was_killed() -> None:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_write_and_wait, args=(there,))
    process.start()
    extent: Extent = here.recv()
    (mapped,) = extent.tensors(extent.slab.map())
    os.kill(process.pid or 0, signal.SIGKILL)
    process.join()
    assert bool((mapped == 7).all())
    with pytest.raises(OSError, match="proc"):
        extent.slab.map()


def test_rows_of_a_layer_are_those_of_the_prompts_or_of_all_of_them() -> None:
    prompts = [torch.arange(4.0).view(2, 2), torch.arange(6.0).view(3, 2) + 10]
    rows = Rows(prompts)
    assert rows[2:5] is prompts[1]
    assert torch.equal(rows[1:3], torch.cat(prompts)[1:3])
    assert (len(rows), rows.shape, rows.dtype) == (5, (5, 2), torch.float32)


@pytest.fixture(scope="module")
def extractor(checkpoints: Path) -> Iterator[Extractor]:
    with Extractor(checkpoints, "llama") as extractor:
        yield extractor


def test_a_result_is_a_plain_tensor_of_its_own(extractor: Extractor, tmp_path: Path) -> None:
    first, second = extractor.check(PROMPTS[:2])
    for layer in first["hidden_states"]:
        assert type(layer) is torch.Tensor
        assert layer.untyped_storage().nbytes() == layer.numel() * layer.element_size()
    kept = [layer.clone() for layer in second["hidden_states"]]
    for layer in first["hidden_states"]:
        layer.zero_()
    assert all(map(torch.equal, second["hidden_states"], kept))
    torch.save(first, tmp_path / "first.pt")
    assert (tmp_path / "first.pt").stat().st_size < 1.1 * sum(layer.untyped_storage().nbytes() for layer in kept) + 8000
    assert not torch.load(tmp_path / "first.pt", weights_only=True)["hidden_states"][0].any()


def test_results_are_not_changed_by_later_calls(extractor: Extractor) -> None:
    results = extractor.check(PROMPTS)
    kept = [[layer.clone() for layer in result["hidden_states"]] for result in results]
    for start in range(1, 6):
        extractor.generator.generate(PROMPTS[start:] + PROMPTS[:start])
    extractor.generator.generate([prompt(7)])
    for result, layers in zip(results, kept, strict=True):
        assert all(map(torch.equal, result["hidden_states"], layers))


def _descriptors(process: int | str = "self") -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def _mapped_bytes(process: int | str = "self") -> int:
    """What a process maps of these files."""
    lines = [line.split() for line in Path(f"/proc/{process}/maps").read_text().splitlines() if "memfd:speculators" in line]
    return sum(int(end, 16) - int(start, 16) for start, end in (line[0].split("-") for line in lines))


def test_nothing_grows(extractor: Extractor) -> None:
    worker = _worker(extractor)
    extractor.generator.generate(PROMPTS)
    gc.collect()
    time.sleep(SETTLING)
    before = (_descriptors(), _descriptors(worker), _mapped_bytes())
    for _ in range(30):
        extractor.generator.generate(PROMPTS)
    gc.collect()
    time.sleep(SETTLING)
    assert (_descriptors(), _descriptors(worker), _mapped_bytes()) == before
    assert _mapped_bytes() == 0


def test_results_that_are_kept_cost_no_descriptors(extractor: Extractor) -> None:
    before, kept = _descriptors(), []
    for _ in range(30):
        kept.append(extractor.generator.generate(PROMPTS[:2]))
    assert _descriptors() == before
    for results in kept:
        assert all(map(torch.equal, results[1]["hidden_states"], kept[0][1]["hidden_states"]))


def test_what_is_not_upstreams_clone_copies() -> None:
    rows = Rows([_own(torch.arange(12.0).view(6, 2)), _own(torch.ones(2, 2))])
    first, again = rows[0:6].clone(), rows[0:6].clone()
    first.zero_()
    assert again.any()
    assert {type(first), type(again), type(rows[1:3]), type(rows[0:6].double()), type(rows[0:6] + 1)} == {torch.Tensor}
    one, other = rows[1:7].clone(), rows[1:7].clone()
    one.fill_(5)
    assert not bool((other == 5).any())
    assert type(pickle.loads(pickle.dumps(rows[0:6]))) is torch.Tensor
    first.detach_()


@pytest.mark.parametrize("missing", [True, False])
def test_without_memfd_create_states_are_sent(monkeypatch: pytest.MonkeyPatch, missing: bool) -> None:
    """A Python that was built with an old glibc has libc's; where that is not allowed either, states go the long way."""
    if missing:
        monkeypatch.delattr(os, "memfd_create")
        memory = SharedMemory()
        extent = _one(memory, 1, (4, 8), torch.float32)
        extent.write(0, 0, torch.full((4, 8), 3.0))
        assert bool((extent.tensors(extent.slab.map())[0] == 3).all())
        memory.close()
        return

    def forbidden(name: str) -> int:
        raise PermissionError("seccomp")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    capture = Capture.__new__(Capture)
    capture.memory, capture.shares_memory = SharedMemory(), True
    assert capture.sample() is None
    capture.shares_memory = True  # and if it only begins to fail in the middle of a job
    (states,) = capture._memory_for([5], [torch.ones(2, 8), torch.ones(2, 8)])
    assert (states.extent, [layer.shape for layer in states.layers]) == (None, [(5, 8), (5, 8)])
    assert not capture.shares_memory


def test_a_slab_that_cannot_be_made_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int, size: int) -> None:
        raise OSError("File too large")

    before = _descriptors()
    monkeypatch.setattr(os, "ftruncate", full)
    with pytest.raises(OSError, match="too large"):
        _one(SharedMemory(), 1, (4, 8), torch.float32)
    assert _descriptors() == before


def _worker(extractor: Extractor) -> int:
    (process,) = extractor.generator.executor.collective_rpc(lambda worker: __import__("os").getpid())
    return int(process)


def test_where_memory_cannot_be_mapped_states_are_right_all_the_same(
    checkpoints: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def elsewhere(slab: Slab) -> None:
        raise FileNotFoundError(f"/proc/{slab.process}/fd/{slab.descriptor}")

    monkeypatch.setattr(Slab, "map", elsewhere)
    with Extractor(checkpoints, "llama") as extractor:
        extractor.check(PROMPTS)
        extractor.check(PROMPTS[:3])
    assert len([record for record in caplog.records if "states are pickled" in record.message]) == 1


def test_where_mapped_memory_is_copied_at_once_it_is_mapped_later(checkpoints: Path) -> None:
    """After mlockall, what is written to a file would not be seen by who has mapped it before."""
    process = run_script(
        """
        import ctypes, sys
        from pathlib import Path
        import speculators_compat
        from tests.engine.support import Extractor, prompt, recorded_calls

        def looks_ahead():
            with Extractor(Path(sys.argv[1]), "llama") as extractor, recorded_calls(extractor.generator) as called:
                extractor.check([prompt(20)])
                return "_extents" in called

        if __name__ == "__main__":
            print("LOOKS AHEAD", looks_ahead())
            print("LOCKED", ctypes.CDLL(None).mlockall(2) == 0)  # MCL_FUTURE
            print("LOOKS AHEAD", looks_ahead())
        """,
        str(checkpoints),
    )
    seen = [line for line in process.stdout.splitlines() if line.startswith(("LOOKS AHEAD", "LOCKED"))]
    if "LOCKED False" in seen:
        pytest.skip("no memory may be locked here")
    assert seen == ["LOOKS AHEAD True", "LOCKED True", "LOOKS AHEAD False"], process.stderr[-3000:]
