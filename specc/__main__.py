"""Entry point of the `specc` command and of `python -m specc`."""

import signal
from typing import NoReturn


def run_command_line() -> NoReturn:
    """Run the `specc` command and exit. Ctrl-C during imports exits without a traceback."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from specc.cli.main import run_main_and_exit

    signal.signal(signal.SIGINT, handler)
    run_main_and_exit()


if __name__ == "__main__":
    run_command_line()
