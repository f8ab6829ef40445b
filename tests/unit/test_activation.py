"""Order of imports, twice, undo, failures: each in a fresh process."""

from __future__ import annotations

from importlib import util

import pytest

from tests.unit.conftest import RunPython

PREPARE = """
import sys
from fake_adapters import *
install(
    adapter("requests", generator_global("Request", tagging("outer"))),
    adapter("generate", generator_method("generate", tagging("generated"))),
)
import speculators_compat
"""
CHECK = """
from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator as Generator
def is_patched():
    answer = Generator("model").generate([[1]])
    return isinstance(answer, tuple) and answer[0] == "generated" and answer[1][0][0] == "outer"
"""


def ok(process: object) -> None:
    assert process.returncode == 0, process.stderr  # type: ignore[attr-defined]


def test_importing_is_cheap_and_imports_nothing_heavy(run_python: RunPython) -> None:
    process = run_python(
        """
        import sys, time
        started = time.perf_counter()
        import speculators_compat
        took = time.perf_counter() - started
        heavy = {"torch", "vllm", "transformers", "speculators", "numpy", "wrapt", "packaging"} & set(sys.modules)
        assert not heavy, heavy
        print(took)
        """
    )
    ok(process)
    assert float(process.stdout) < 0.03


def test_import_before(run_python: RunPython) -> None:
    ok(run_python(PREPARE + CHECK + "assert is_patched()"))


def test_activation_after_says_what_came_too_late(run_python: RunPython) -> None:
    process = run_python(
        PREPARE
        + """
speculators_compat.deactivate()
import speculators.data_generation as data_generation
old = data_generation.VllmHiddenStatesGenerator("model")

class Subclass(data_generation.VllmHiddenStatesGenerator):
    def generate(self, token_ids):
        return super().generate(token_ids)

speculators_compat.activate()
"""
        + CHECK
        + "assert is_patched()"
    )
    ok(process)
    assert process.stderr.count("was imported after speculators.data_generation.vllm_hidden_states_generator") == 1
    assert "1 generator(s) built before" in process.stderr
    assert "__main__.Subclass.generate" in process.stderr


def test_twice_threads_and_reload_apply_once(run_python: RunPython) -> None:
    ok(
        run_python(
            PREPARE
            + CHECK
            + """
import importlib, threading
from speculators.data_generation import vllm_hidden_states_generator as upstream
patched = upstream.Request
threads = [threading.Thread(target=speculators_compat.activate) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
importlib.reload(speculators_compat)
speculators_compat.activate()
assert upstream.Request is patched
assert is_patched()
assert len([f for f in sys.meta_path if type(f).__name__ == "PostImportFinder"]) == 1
"""
        )
    )


def test_a_reload_of_upstream_is_patched_again(run_python: RunPython) -> None:
    ok(
        run_python(
            PREPARE
            + CHECK
            + """
import importlib
from speculators.data_generation import vllm_hidden_states_generator as upstream
Generator = importlib.reload(upstream).VllmHiddenStatesGenerator
assert is_patched()
for name in [name for name in sys.modules if name.startswith("speculators.")]: del sys.modules[name]
from speculators.data_generation import VllmHiddenStatesGenerator as Generator
assert is_patched()
"""
        )
    )


def test_deactivate_restores_every_original(run_python: RunPython) -> None:
    ok(
        run_python(
            PREPARE
            + """
speculators_compat.deactivate()
from speculators.data_generation import vllm_hidden_states_generator as upstream
originals = upstream.Request, vars(upstream.VllmHiddenStatesGenerator)["generate"]
speculators_compat.activate()
"""
            + CHECK
            + """
kept = upstream.Request
assert is_patched() and speculators_compat.status().patched
speculators_compat.deactivate()
assert (upstream.Request, vars(upstream.VllmHiddenStatesGenerator)["generate"]) == originals
assert not isinstance(kept([1]), tuple), "a reference that somebody kept still adapts"
assert not speculators_compat.status().active and not speculators_compat.status().patched
speculators_compat.activate()
assert is_patched()
"""
        )
    )


def test_all_or_nothing(run_python: RunPython) -> None:
    """The second of three adapters has no target: an error that says so, logged as well, and nothing stays patched."""
    process = run_python(
        """
from fake_adapters import *
install(
    adapter("first", generator_global("Request", tagging("outer"))),
    adapter("second", generator_global("Absent", tagging("outer"))),
    adapter("third", generator_global("Scheduler", tagging("outer"))),
)
import speculators_compat, fake_vllm
try:
    from speculators.data_generation import VllmHiddenStatesGenerator
except speculators_compat.ContractError as error:
    assert "vllm_hidden_states_generator.Absent does not exist" in str(error), error
else:
    raise SystemExit("it was imported")
assert not speculators_compat.status().patched
"""
    )
    ok(process)


def test_a_refusal_is_raised_and_logged(run_python: RunPython) -> None:
    """An importer that swallows exceptions would switch the feature off unseen."""
    process = run_python(
        """
from fake_adapters import *
from speculators_compat.errors import ContractError
def probe(): raise ContractError("Scheduler has no method schedule")
install(adapter("first", generator_global("Request", tagging("outer")), probe=probe))
import speculators_compat
try:
    from speculators.data_generation import VllmHiddenStatesGenerator
except Exception:
    VllmHiddenStatesGenerator = None
assert VllmHiddenStatesGenerator is None
"""
    )
    ok(process)
    assert "Scheduler has no method schedule" in process.stderr


@pytest.mark.skipif(util.find_spec("vllm") is not None, reason="vllm is installed here")
def test_without_vllm_importing_is_harmless(run_python: RunPython) -> None:
    process = run_python(
        """
        import speculators_compat
        status = speculators_compat.status()
        print(status)
        assert status.active and not status.decisions
        assert "vllm" in status.missing
        """
    )
    ok(process)


def test_foreign_replacements_take_part(run_python: RunPython) -> None:
    """A user's replacement made after ours is called by ours from the next seam on; undo leaves it in place."""
    ok(
        run_python(
            PREPARE
            + CHECK
            + """
from speculators_compat.activation import reseat
from speculators.data_generation import vllm_hidden_states_generator as upstream
import fake_vllm
theirs = lambda ids: ("theirs", fake_vllm.Request(ids))
upstream.Request = theirs
reseat()
assert upstream.Request([1])[0] == "outer" and upstream.Request([1])[1][0] == "theirs"
reseat()
assert upstream.Request([1])[1][0] == "theirs"
speculators_compat.deactivate()
assert upstream.Request is theirs
"""
        )
    )


def test_the_switch_keeps_an_adapter_out(run_python: RunPython) -> None:
    ok(
        run_python(
            PREPARE
            + "import os; os.environ['SPECULATORS_COMPAT_DISABLE'] = 'requests'"
            + CHECK
            + "assert Generator('m').generate([[1]])[1][0].ids == [1]"
        )
    )


def test_installed_but_not_imported_it_changes_nothing(run_python: RunPython) -> None:
    """vLLM loads the plugin in every process; only those whose parent has imported the package are concerned."""
    ok(
        run_python(
            """
import os, sys
os.environ.pop("SPECULATORS_COMPAT_ACTIVE", None)
from importlib.metadata import entry_points
(plugin,) = (found for found in entry_points(group="vllm.general_plugins") if found.name == "speculators_compat")
plugin.load()()
assert "speculators_compat" not in sys.modules
import speculators_compat
speculators_compat.deactivate()
plugin.load()()
assert not speculators_compat.status().active
"""
        )
    )


def test_the_plugin_activates_where_the_parent_is_active(run_python: RunPython) -> None:
    ok(
        run_python(
            """
import subprocess, sys
import speculators_compat
child = "import sys, speculators_compat_plugin as p; p.register(); assert 'speculators_compat' in sys.modules"
subprocess.run([sys.executable, "-c", child], check=True)
"""
        )
    )


def test_replacing_a_name_for_a_while_again_and_again_leaves_no_layers(run_python: RunPython) -> None:
    ok(
        run_python(
            PREPARE
            + CHECK
            + """
from unittest import mock
from speculators_compat.activation import reseat
from speculators.data_generation import vllm_hidden_states_generator as upstream
import fake_vllm
for _ in range(5):
    with mock.patch.object(upstream, "Request", lambda ids: fake_vllm.Request(ids)):
        reseat()
        assert is_patched()
    reseat()
    assert is_patched()
assert upstream.Request.__wrapped__ is fake_vllm.Request
speculators_compat.deactivate()
assert upstream.Request is fake_vllm.Request
"""
        )
    )


def test_dead_weak_references_do_not_matter(run_python: RunPython) -> None:
    ok(
        run_python(
            PREPARE
            + """
import weakref
class Thing: pass
proxy = weakref.proxy(Thing())
speculators_compat.deactivate()
import speculators.data_generation
speculators_compat.activate()
assert speculators_compat.status().patched
"""
        )
    )
