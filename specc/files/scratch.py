"""Folders for what is needed while a command runs, and by nobody afterwards."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from specc.files import left
from specc.files.place import explain


@contextmanager
def scratch() -> Iterator[Path]:
    """An empty folder among those for temporary files, gone at the end with all in it.

    What killed processes of the same user left behind goes first. E0810 to E0815 where
    there can be none.
    """
    try:
        room = Path(tempfile.gettempdir())
        _clear_stale(room)
        made = tempfile.TemporaryDirectory(prefix=left.owner())
    except OSError as error:
        explain(error, Path(os.environ.get("TMPDIR", "/tmp")) / "specc")
    with made as folder:
        yield Path(folder)


def _clear_stale(room: Path) -> None:
    """Removes our folders of processes that are gone."""
    with os.scandir(room) as entries:
        for entry in entries:
            if entry.name.startswith("specc-") and _abandoned(entry):
                shutil.rmtree(entry.path, ignore_errors=True)


def _abandoned(entry: "os.DirEntry[str]") -> bool:
    """Whether it is a folder of this user, and of a process that is gone."""
    with suppress(OSError):  # someone else has cleared it
        facts = entry.stat(follow_symlinks=False)
        # where there are no users, each has a folder of their own for temporary files
        mine = "getuid" not in vars(os) or facts.st_uid == os.getuid()
        gone = left.abandoned(entry.name, facts.st_mtime)
        return mine and gone and entry.is_dir(follow_symlinks=False)
    return False
