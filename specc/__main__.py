"""`python -m specc`."""

from specc.cli.main import entry

entry()
