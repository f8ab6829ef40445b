"""Activates speculators_compat in every Python that starts with this folder on its PYTHONPATH (`speculators-compat run`).

Python imports the first `sitecustomize` that it finds when it starts; the one that this hides is imported from here. An
interpreter of another environment may have no speculators_compat, and is left alone, but not unsaid if it has speculators.
"""

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

FOLDER = str(Path(__file__).parent)


def activate() -> None:
    """Import the package; an interpreter in which that fails is ended, for Python would only print the error and go on."""
    if find_spec("speculators_compat") is not None:
        try:
            import_module("speculators_compat")
        except Exception as error:
            raise SystemExit(f"speculators-compat run: {type(error).__name__}: {error}") from error
    elif find_spec("speculators") is not None:
        sys.stderr.write(f"speculators-compat run: {sys.executable} has speculators, but no speculators-compat to adapt it\n")


sys.path[:] = [entry for entry in sys.path if entry != FOLDER]
this = sys.modules.pop(__name__)
try:
    import_module(__name__)
except ModuleNotFoundError as error:
    if error.name != __name__:
        raise
    sys.modules[__name__] = this
finally:
    activate()
