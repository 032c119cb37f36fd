"""Ctrl-C while the modules of a command are imported: no traceback."""

import signal
import subprocess
import sys

import pytest

START = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "specc.cli.main":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
sys.argv = ["specc", "--version"]
signal.signal(signal.SIGINT, {handler})
from specc.__main__ import run_command_line
run_command_line()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(
    ("handler", "status"), [("signal.default_int_handler", -signal.SIGINT), ("signal.SIG_IGN", 0)]
)
def test_interrupt_during_imports(handler: str, status: int) -> None:
    start = [sys.executable, "-c", START.format(handler=handler)]
    done = subprocess.run(start, capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr
    assert done.returncode == status
