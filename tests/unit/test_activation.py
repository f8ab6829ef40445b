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
assert len([f for f in sys.meta_path if type(f).__name__ == "UpstreamFinder"]) == 1
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


def test_a_speculators_without_the_generator_says_what_to_do(run_python: RunPython) -> None:
    """In whatever way it is imported; and nothing else of speculators is touched."""
    ok(
        run_python(
            """
import os
os.environ["SPECULATORS_COMPAT_SPECULATORS_VERSION"] = "0.9.0"
import pathlib, speculators
folder = pathlib.Path(speculators.__file__).parent / "data_generation"
(folder / "vllm_hidden_states_generator.py").unlink()
(folder / "__init__.py").write_text("")
(folder / "vllm_client.py").write_text("client = 1")
import speculators_compat
import speculators.data_generation as package
assert not hasattr(package, "VllmHiddenStatesGenerator")
from speculators.data_generation.vllm_client import client
for statement in (
    "from speculators.data_generation.vllm_hidden_states_generator import VllmHiddenStatesGenerator",
    "from speculators.data_generation import VllmHiddenStatesGenerator",
    "import speculators.data_generation.vllm_hidden_states_generator",
):
    try:
        exec(statement)
    except ImportError as error:
        assert isinstance(error, speculators_compat.RemovedError), error
        assert "0.5.0 removed VllmHiddenStatesGenerator" in str(error) and "speculators==0.4.0.1" in str(error), error
    else:
        raise SystemExit(statement)
try:
    from speculators.data_generation import something_else
except ImportError as error:
    assert not isinstance(error, speculators_compat.RemovedError)
else:
    raise SystemExit("it was imported")
"""
        )
    )


def test_an_import_that_vllm_cannot_serve_names_the_versions(run_python: RunPython) -> None:
    process = run_python(
        """
import os, pathlib, sys
os.environ["SPECULATORS_COMPAT_VLLM_VERSION"] = "0.99.0"
import speculators
root = pathlib.Path(speculators.__file__).parents[1]
(root / "vllm").mkdir()
(root / "vllm" / "__init__.py").write_text("")
module = root / "speculators" / "data_generation" / "vllm_hidden_states_generator.py"
module.write_text("from vllm.utils.hashing import get_hash_fn_by_name")
import speculators_compat
try:
    from speculators.data_generation import VllmHiddenStatesGenerator
except speculators_compat.ContractError as error:
    assert "vllm 0.99.0" in str(error) and "No module named 'vllm.utils'" in str(error) and "Tested" in str(error), error
else:
    raise SystemExit("it was imported")
module.write_text("import a_module_of_somebody_else")
try:
    from speculators.data_generation import VllmHiddenStatesGenerator
except ModuleNotFoundError as error:
    assert error.name == "a_module_of_somebody_else"
else:
    raise SystemExit("it was imported")
"""
    )
    ok(process)
    assert "imports what vllm 0.99.0" in process.stderr


def test_preparations_come_before_their_module_and_can_be_switched_off(run_python: RunPython) -> None:
    source = """
from fake_adapters import *
from speculators_compat.adapter import Preparation
import sys
seen = []
def look(name): return lambda: seen.append((name, "VllmHiddenStatesGenerator" in vars(sys.modules.get(GENERATOR_MODULE, sys))))
import dataclasses
first = dataclasses.replace(adapter("first"), preparations=(Preparation("speculators", look("speculators")),))
second = dataclasses.replace(adapter("second"), preparations=(Preparation(GENERATOR_MODULE, look(GENERATOR_MODULE)),))
install(first, second)
import speculators_compat
import speculators
import speculators.data_generation
print([name for name, done in seen])
assert not any(done for name, done in seen)
look(GENERATOR_MODULE)()
assert seen[-1][1], "the check is worth nothing"
"""
    process = run_python(source)
    ok(process)
    assert "['speculators', 'speculators.data_generation.vllm_hidden_states_generator']" in process.stdout
    switch = "import os; os.environ['SPECULATORS_COMPAT_DISABLE'] = 'first'\nimport speculators\n"
    process = run_python(source.replace("import speculators\n", switch))
    ok(process)
    assert "['speculators.data_generation.vllm_hidden_states_generator']" in process.stdout


def test_until_it_is_imported_speculators_has_a_loader_that_answers(run_python: RunPython) -> None:
    ok(
        run_python(
            """
import importlib.util, pkgutil
import speculators_compat
loader = importlib.util.find_spec("speculators").loader
assert loader.is_package("speculators") and loader.get_code("speculators") is not None
import pathlib
root = pathlib.Path(loader.get_filename("speculators")).parent
(root / "data.txt").write_text("text")
assert loader.get_data(str(root / "data.txt")) == b"text"
"""
        )
    )
