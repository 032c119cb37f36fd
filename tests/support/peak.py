"""How much memory a command takes, asked of the process itself."""

PEAK = """
import sys
from resource import RUSAGE_SELF, getrusage
from specc.cli.main import main
code = main(sys.argv[1:])
print(getrusage(RUSAGE_SELF).ru_maxrss, file=sys.stderr)
sys.exit(code)
"""
"""A program that runs `specc` with its arguments and prints its peak in KB last."""
