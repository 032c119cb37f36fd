"""Where something may be written: the one rule for every command that writes.

specc replaces nothing, an empty file, or what specc wrote; anything else only where
`force` says so; and never a file that the same command reads. The ending is that of the
format. A link is followed to a regular file, which is then what is replaced; a folder,
a device, a pipe, or a link to one of these or to nothing is refused.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from specc.files import ours
from specc.files.read import shown
from specc.files.system import unbearable
from specc.text.diagnostic import fail

NOTHING = "nothing was written; what was there before is unchanged"

_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True, slots=True)
class Kind:
    """What is written: in words, how its name ends, and how one that specc wrote is
    recognized, if it can be.
    """

    what: str
    endings: tuple[str, ...]
    recognized: Callable[[Path], bool] | None = None
    folder: str = ""
    """What makes a folder of the same."""


MODEL = Kind(
    "an ONNX model",
    (".onnx",),
    ours.is_model,
    "or say what a folder is to hold: `--for all` for a model that writes, else "
    "`--for score`",
)
PICTURE = Kind("a picture", (".png",), ours.is_picture)
LOOK = Kind("a picture of attention", (".svg", ".html", ".png"), ours.is_drawing)
DRAWING = Kind("a drawing", (".svg",), ours.is_drawing)
PAGE = Kind("a page", (".html",), ours.is_drawing)
ARRAYS = Kind("arrays", (".npz",), ours.is_arrays)
WEIGHTS = Kind("weights", (".safetensors",), ours.is_weights)
INDEX = Kind("the index of a package", (".json",), ours.is_index)
SPEC = Kind("a spec", (".specc", ".yaml", ".yml"))
BEGUN = Kind("a spec", (".yaml", ".specc", ".yml"))
LEARNED = Kind("weights", (".safetensors",), ours.is_weights)
"""What is named without an option: a new spec on its command line, weights in Python."""
WORDS = Kind("a list of words", (".vocab",))


def place(
    path: str | Path,
    kind: Kind,
    *,
    inputs: Iterable[str | Path] = (),
    force: bool = False,
    content: bytes = b"",
) -> Path:
    """The file that is to be written for the output `path`: itself, or what it is a
    link to.

    What there is may be `content` already. Fails with E0811 (no place for a file),
    E0814 (an input), E0816 (another ending), E0833 (someone else's file).
    """
    if os.path.basename(path) in ("", ".") and not os.path.isdir(path):
        # what a `Path` forgets
        no_file(Path(path), "the name of a folder")
    path = settled(path)
    refuse_unbearable(path)
    refuse_inputs(path, inputs)
    real = followed(path)
    if path.suffix.lower() not in kind.endings:
        usual = str(path.with_name(f"{path.stem or 'name'}{kind.endings[0]}"))
        fail(
            "E0816",
            f"{kind.what} cannot be written as `{shown(str(path))}`",
            notes=[f"its name ends in {' or '.join(kind.endings)}", NOTHING],
            helps=[
                f"name it `{shown(usual)}`{_why(path, kind)}"
                if kind in (PICTURE, LOOK, DRAWING, PAGE, BEGUN, LEARNED)
                else f"write `-o {shown(usual)}`",
                # a name without an ending is one of a folder
                *([kind.folder] if kind.folder and not path.suffix else []),
            ],
        )
    if not force and not _replaceable(real, kind, content):
        refuse(
            path,
            f"it is not {kind.what} that specc wrote",
            "say --force to replace it, or give another name",
        )
    return real


def _why(path: Path, kind: Kind) -> str:
    """What speaks for the ending that is proposed."""
    if path.suffix.lower() == ".pdf" and ".svg" in kind.endings:
        return ", which is as sharp; a browser prints it as PDF"
    return ""


def refuse_unbearable(path: Path) -> None:
    """E0958 for a name that some system cannot hold, wherever it is written: models are
    carried from one to another.
    """
    if why := unbearable(path.name):
        fail(
            "E0958",
            f"`{shown(path.name)[:60]}` is a name that not every system can hold",
            notes=[why, NOTHING],
            helps=["give another name with -o"],
        )


def settled(path: str | Path) -> Path:
    """A path without steps into folders that are not there and back: `new/../m.onnx` is
    `m.onnx`, where no system would find it.
    """
    at = Path()
    for part in Path(path).parts:
        at = at.parent if part == ".." and not os.path.lexists(at) else at / part
    return at


def refuse(path: Path, why: str, mend: str) -> NoReturn:
    """E0833: what lies there is not ours to replace."""
    fail(
        "E0833",
        f"`{shown(str(path))}` would be replaced",
        notes=[why, NOTHING],
        helps=[mend],
    )


def refuse_inputs(path: str | Path, inputs: Iterable[str | Path]) -> None:
    """Fails with E0814 if the output is, by whatever name, one of the files that are read."""
    for given in inputs:
        try:
            same = os.path.samefile(path, given)
        except (OSError, ValueError):
            same = False
        if same:
            fail(
                "E0814",
                f"the output `{shown(str(path))}` is one of the inputs",
                notes=[
                    f"it is the same file as `{shown(str(given))}`",
                    "nothing was written",
                ],
                helps=["give another name with -o"],
            )


def followed(path: Path) -> Path:
    """The regular file, there or not, that a path means. E0811 for anything else."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, ValueError) as error:
        explain(error, path)
    if not stat.S_ISLNK(mode):
        _only_files(path, mode, "")
        return path
    try:
        real = Path(os.path.realpath(path, strict=True))
        mode = os.stat(real).st_mode
    except OSError:
        no_file(path, "a link that leads nowhere")
    _only_files(path, mode, "a link to ")
    return real


def _only_files(path: Path, mode: int, through: str) -> None:
    if not stat.S_ISREG(mode):
        no_file(
            path, through + ("a folder" if stat.S_ISDIR(mode) else "a device or a pipe")
        )


def no_file(path: Path, what: str) -> NoReturn:
    """E0811: what lies there is something else than a file."""
    title = f"the output `{shown(str(path))}` is {what}"
    fail(
        "E0811", title, notes=["nothing was written"], helps=["give the name of a file"]
    )


def _replaceable(path: Path, kind: Kind, content: bytes) -> bool:
    """Whether there is nothing to lose: no file, an empty one, that content, or one
    that specc wrote.
    """
    try:
        size = os.stat(path).st_size
    except (OSError, ValueError):
        return True  # what is wrong with the place, writing will tell
    if size == 0 or (kind.recognized is not None and kind.recognized(path)):
        return True
    return bool(content) and size == len(content) and path.read_bytes() == content


def _stands(folder: Path) -> bool:
    """Whether a folder is there; the one that a command works in may have been removed,
    and has no name any more.
    """
    return folder.is_dir() and folder.stat().st_nlink > 0


def explain(error: OSError | ValueError, path: Path) -> NoReturn:
    """The coded form of what the system said: E0810 to E0815."""
    number = error.errno if isinstance(error, OSError) else None
    name = f"`{shown(str(path))}`"
    if number == errno.ENOENT and not os.path.lexists(path) and _stands(path.parent):
        fail(
            "E0812",
            f"the output {name} cannot be written: this folder takes no files",
            notes=["it shows what the system does, and is on no disk", NOTHING],
            helps=["choose a folder you may write to with -o"],
        )
    if number == errno.ENOENT:
        fail(
            "E0810",
            f"there is no folder for the output {name}",
            notes=[
                "a part of its path is a link that leads nowhere, or was removed just now",
                NOTHING,
            ],
            helps=["make the folder that the link means, or give another path"],
        )
    if number in (errno.ENOTDIR, errno.EISDIR):
        fail(
            "E0811",
            f"{name} is not a folder",
            notes=[NOTHING],
            helps=["give a path in a folder with -o"],
        )
    if number in _DENIED:
        fail(
            "E0812",
            f"the output {name} cannot be written: {words(error)}",
            notes=[NOTHING],
            helps=["choose a folder you may write to with -o"],
        )
    if number in _FULL:
        fail(
            "E0813",
            f"there is no space left for {name}",
            notes=[f"the system says: {words(error)}", NOTHING],
            helps=["free some space, or write to another disk with -o"],
        )
    fail(
        "E0815",
        f"writing {name} failed: {words(error)}",
        notes=[NOTHING],
        helps=["check the name and the disk, or write somewhere else with -o"],
    )


def words(error: OSError | ValueError) -> str:
    """What the system said, in lower case."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return (
        "the name holds a NUL character"
        if isinstance(error, ValueError)
        else "unknown error"
    )
