"""Turn termination signals into an exception, so that temporary files are removed on exit."""

import signal
from types import FrameType

SIGNAL_NAMES = ("SIGTERM", "SIGHUP")
"""Signals by which others end a process: a supervisor, a terminal that is closed."""


RECEIVED_SIGNALS: list[int] = []
"""Signals that came; a library that is being imported may turn their exception into another."""


class ProcessTerminated(KeyboardInterrupt):
    """The process was told to end, with exit `status`; handled like Ctrl-C."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        """128 and the number of the signal, as shells count."""
        return 128 + self.number


def install_termination_handlers() -> None:
    """Raise `ProcessTerminated` on termination signals, except those ignored already (`nohup`)."""
    for name in SIGNAL_NAMES:
        # not every system has all of them
        number = vars(signal).get(name)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _raise_terminated)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _raise_interrupted)


def get_pending_termination() -> KeyboardInterrupt | None:
    """What the last signal raised, if one came, whatever became of it on its way."""
    if not RECEIVED_SIGNALS:
        return None
    number = RECEIVED_SIGNALS[-1]
    return KeyboardInterrupt() if number == signal.SIGINT else ProcessTerminated(number)


def _raise_terminated(number: int, _: FrameType | None) -> None:
    RECEIVED_SIGNALS.append(number)
    # who asks a second time does not want to wait
    signal.signal(number, signal.SIG_DFL)
    raise ProcessTerminated(number)


def _raise_interrupted(number: int, frame: FrameType | None) -> None:
    RECEIVED_SIGNALS.append(number)
    signal.default_int_handler(number, frame)
