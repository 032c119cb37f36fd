"""`python -m specc`."""

from specc.cli import entry

entry()
