"""`python -m specc`."""

from specc.cli.main import run_and_exit

run_and_exit()
