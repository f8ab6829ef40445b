"""`python -m speculators_compat` is the command `speculators-compat`."""

from speculators_compat.cli import main

if __name__ == "__main__":
    main(prog_name="speculators-compat")
