"""Journal of the rows in progress, to find a row that kills its process."""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from specc.io.json_io import parse_strict_json
from specc.io.output_paths import raise_os_error

MAX_ATTEMPTS = 2


@dataclass
class CrashJournal:
    """Crashes of one block by rows; `now` are the rows in progress. A `shared` journal, which
    another live process writes, is not written. `lock` is a file descriptor.
    """

    path: Path
    died: dict[str, int] = field(default_factory=dict)
    now: str = ""
    shared: bool = False
    lock: int | None = None

    @staticmethod
    def open(path: Path) -> "CrashJournal":
        """The journal of a block, with the death that it tells of counted."""
        try:
            journal = CrashJournal(path, lock=lock_journal(path))
        except BlockingIOError:
            return CrashJournal(path, shared=True)
        found = _last(path)
        if isinstance(found, dict):
            died, now = found.get("died"), found.get("now")
            told = died.items() if isinstance(died, dict) else ()
            journal.died = {k: n for k, n in told if isinstance(n, int)}
            # whoever began this did not end it, and holds no lock any more
            if isinstance(now, str) and now:
                journal.died[now] = journal.died.get(now, 0) + 1
        return journal

    def begin(self, rows: Sequence[int]) -> None:
        """These rows are worked on from now."""
        self.now = journal_key(rows)
        if self.shared:
            return
        data = {"died": self.died, "now": self.now}
        append_journal_line(self.path, f"{json.dumps(data)}\n")

    def fatal(self, rows: Sequence[int]) -> bool:
        """Whether processes died of these rows, twice."""
        return self.died.get(journal_key(rows), 0) >= MAX_ATTEMPTS

    def blamed(self) -> set[int]:
        """The rows of which processes died twice, alone or together."""
        keys = (key for key, count in self.died.items() if count >= MAX_ATTEMPTS)
        return {int(n) for key in keys for n in key.split() if n.isdecimal()}

    def close(self) -> None:
        """The block is done."""
        if not self.shared:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> "CrashJournal":
        return self

    def __exit__(self, *fault: object) -> None:
        """Whatever happened, the lock ends."""
        if self.lock is not None:
            os.close(self.lock)
            self.lock = None


def lock_journal(path: Path) -> int | None:
    """Return the locked file descriptor, None without locks. Raise BlockingIOError if it is
    locked, E0811 to E0815 if it cannot be created.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    while True:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise_os_error(error, path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, path):
                return descriptor
            os.close(descriptor)  # who held it has ended, and removed the file
        except BlockingIOError:
            os.close(descriptor)
            raise
        except OSError:  # a disk without locks
            os.close(descriptor)
            return None


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether the file that is open still has this name."""
    with suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), os.stat(path))
    return False


def append_journal_line(path: Path, line: str) -> None:
    """A line more; E0811 to E0815 where that cannot be."""
    try:
        with path.open("a", encoding="utf-8") as journal:
            journal.write(line)
    except OSError as error:
        raise_os_error(error, path)


def _last(path: Path) -> object:
    """Return the last whole line, None without a journal."""
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, ValueError):
        return None
    for line in reversed(lines):
        with suppress(ValueError):  # the last one may be torn
            return parse_strict_json(line)
    return None


def journal_key(rows: Sequence[int]) -> str:
    """The numbers of some rows as one text."""
    return " ".join(map(str, rows))
