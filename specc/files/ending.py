"""A process that is told to end takes away what it had begun to write.

The system's way to end a process at once leaves temporary files and folders where they
are. So a signal to end becomes an exception, as Ctrl-C does, and everything that cleans
up behind one cleans up here too.
"""

import signal
from types import FrameType

NAMES = ("SIGTERM", "SIGHUP")
"""Signals by which others end a process: a supervisor, a terminal that is closed."""


ASKED: list[int] = []
"""The signals that came. Code that is being loaded when one comes may make another
exception of it: a library in C then says that it could not be initialized.
"""


class Ended(KeyboardInterrupt):
    """The process was told to end; `status` is what it ends with.

    Who listens for Ctrl-C listens for this.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    @property
    def status(self) -> int:
        """128 and the number of the signal, as shells count."""
        return 128 + self.number


def end_cleanly() -> None:
    """Has the signals to end raise `Ended` in the main thread, from which this is called.

    One that somebody has already decided about, as `nohup` does, stays as it is.
    """
    for name in NAMES:
        # not every system has all of them
        number = vars(signal).get(name)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _end)
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def asked_to_end() -> KeyboardInterrupt | None:
    """What the last signal raised, if one came, whatever became of it on its way."""
    if not ASKED:
        return None
    number = ASKED[-1]
    return KeyboardInterrupt() if number == signal.SIGINT else Ended(number)


def _end(number: int, _: FrameType | None) -> None:
    ASKED.append(number)
    # who asks a second time does not want to wait
    signal.signal(number, signal.SIG_DFL)
    raise Ended(number)


def _interrupt(number: int, frame: FrameType | None) -> None:
    ASKED.append(number)
    signal.default_int_handler(number, frame)
