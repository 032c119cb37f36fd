"""Check output paths. Raise E0810 to E0816, E0833 or E0958 if a path must not be written."""

import errno
import os
import stat
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.io import file_type_detection
from specc.io.safe_read import describe_os_error, escape_text

NOTHING_WRITTEN = "nothing was written; existing files are unchanged"

_ACCESS_ERRORS = {errno.EACCES, errno.EPERM, errno.EROFS}
_DISK_FULL_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

FORCE_HELP = "overwrite existing files that specc did not write; input files are never overwritten"
"""The help text of `--force`."""


@dataclass(frozen=True, slots=True)
class OutputFileType:
    """A type of output file: description, suffixes, and a test for files written by specc."""

    description: str
    suffixes: tuple[str, ...]
    is_written_by_specc: Callable[[Path], bool] | None = None
    directory_help: str = ""
    """The help text for an output path that is a directory."""


MODEL_OUTPUT = OutputFileType(
    "an ONNX model",
    (".onnx",),
    file_type_detection.is_specc_model,
    "or write a package: `--graphs all` for a generative model, else `--graphs score`",
)
IMAGE_OUTPUT = OutputFileType("an image", (".png",), file_type_detection.is_specc_png)
ATTENTION_PLOT_OUTPUT = OutputFileType(
    "an attention plot", (".svg", ".html", ".png"), file_type_detection.is_specc_drawing
)
DRAWING_OUTPUT = OutputFileType("a drawing", (".svg",), file_type_detection.is_specc_drawing)
HTML_OUTPUT = OutputFileType("a page", (".html",), file_type_detection.is_specc_drawing)
ARRAYS_OUTPUT = OutputFileType("arrays", (".npz",), file_type_detection.is_specc_npz)
WEIGHTS_OUTPUT = OutputFileType(
    "weights", (".safetensors",), file_type_detection.is_specc_safetensors
)
SPEC_OUTPUT = OutputFileType("a spec", (".specc", ".yaml", ".yml"))
NEW_SPEC_OUTPUT = OutputFileType("a spec", (".yaml", ".specc", ".yml"))
TRAINED_WEIGHTS_OUTPUT = OutputFileType(
    "weights", (".safetensors",), file_type_detection.is_specc_safetensors
)
"""Outputs whose path is a positional argument: specs on the command line, weights in Python."""
VOCABULARY_OUTPUT = OutputFileType("a vocabulary", (".vocab",))
_KINDS_WITHOUT_OPTION = (
    *(IMAGE_OUTPUT, ATTENTION_PLOT_OUTPUT, DRAWING_OUTPUT, HTML_OUTPUT),
    *(NEW_SPEC_OUTPUT, TRAINED_WEIGHTS_OUTPUT),
)
"""Types of output whose path is not set with `-o`."""


def resolve_output_path(
    path: str | Path,
    file_type: OutputFileType,
    *,
    inputs: Iterable[str | Path] = (),
    force: bool = False,
    content: bytes = b"",
) -> Path:
    """Return the path of the file to write for `path`, after resolving symbolic links. An existing
    file with the content `content` is allowed. Raise E0811 for a path that is not a file, E0814 for
    an input, E0816 for a wrong suffix, or E0833 for a file of another program.
    """
    if os.path.basename(path) in ("", ".") and not os.path.isdir(path):
        # the path has a trailing slash, which `Path` would drop
        raise_file_type_error(Path(path), "the name of a directory")
    path = normalize_output_path(path)
    reject_unportable_file_name(path)
    reject_input_overwrite(path, inputs)
    target = resolve_output_symlink(path)
    if path.suffix.lower() not in file_type.suffixes:
        suggested_path = str(path.with_name(f"{path.stem or 'name'}{file_type.suffixes[0]}"))
        raise_error(
            "E0816",
            f"{file_type.description} cannot be written as `{escape_text(path)}`",
            notes=[f"its extension must be {' or '.join(file_type.suffixes)}", NOTHING_WRITTEN],
            helps=[
                f"use the name `{escape_text(suggested_path)}`{_explain_suffix(path, file_type)}"
                if file_type in _KINDS_WITHOUT_OPTION
                else f"write `-o {escape_text(suggested_path)}`",
                # a path without a suffix was probably meant as a directory
                *(
                    [file_type.directory_help]
                    if file_type.directory_help and not path.suffix
                    else []
                ),
            ],
        )
    if not force and not _is_replaceable(target, file_type, content):
        raise_overwrite_error(
            path,
            f"the file is not {file_type.description} written by specc",
            "pass --force to overwrite it, or use another name",
        )
    return target


def _explain_suffix(path: Path, kind: OutputFileType) -> str:
    """Return the reason for suggesting a suffix, which forms the end of a help message."""
    if path.suffix.lower() == ".pdf" and ".svg" in kind.suffixes:
        return ", which is a vector format; browsers print it as PDF"
    return ""


WINDOWS_DEVICE_NAMES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"{port}{n}" for port in ("com", "lpt") for n in range(10)}
)
"""Names of Windows devices, which are reserved both with and without a suffix."""


def explain_unportable_file_name(name: str) -> str:
    """Return the reason why a file name is not portable, or "" if it is portable."""
    stem = name.partition(".")[0].rstrip(" ").casefold()
    if stem in WINDOWS_DEVICE_NAMES:
        return f"`{stem}` is a device on Windows, with any extension"
    if name.rstrip(". ") != name and name not in (".", ".."):
        return "Windows removes dots and spaces at the end of a name"
    return ""


def reject_unportable_file_name(path: Path) -> None:
    """Raise E0958 if a file name is invalid on some operating systems."""
    if reason := explain_unportable_file_name(path.name):
        raise_error(
            "E0958",
            f"`{escape_text(path.name)[:60]}` is not a portable file name",
            notes=[reason, NOTHING_WRITTEN],
            helps=["use another name with -o"],
        )


MAX_STEM_LENGTH = 150
"""Maximum length of a stem in bytes. With hash and suffix, the name is valid on all systems."""


def sanitize_file_stem(name: str) -> str:
    """Convert a name to a file stem that is valid in ONNX and on every operating system."""
    clean = "".join(c if c.isprintable() and c not in "\\/:" else "_" for c in name)
    return clean.encode()[:MAX_STEM_LENGTH].decode(errors="ignore")


def normalize_output_path(path: str | Path) -> Path:
    """Remove each `..` that follows a missing directory: `new/../m.onnx` becomes `m.onnx`."""
    normalized = Path()
    for part in Path(path).parts:
        normalized = (
            normalized.parent
            if part == ".." and not os.path.lexists(normalized)
            else normalized / part
        )
    return normalized


def raise_overwrite_error(path: Path, reason: str, fix: str) -> NoReturn:
    """Raise E0833 for an existing file that specc did not write."""
    raise_error(
        "E0833",
        f"the output `{escape_text(path)}` already exists and would be overwritten",
        notes=[reason, NOTHING_WRITTEN],
        helps=[fix],
    )


def reject_input_overwrite(path: str | Path, inputs: Iterable[str | Path]) -> None:
    """Raise E0814 if the output is the same file as an input, even under another path."""
    for input_path in inputs:
        try:
            is_same_file = os.path.samefile(path, input_path)
        except (OSError, ValueError):
            is_same_file = False
        if is_same_file:
            raise_error(
                "E0814",
                f"the output `{escape_text(path)}` is one of the inputs",
                notes=[
                    f"it is the same file as `{escape_text(input_path)}`",
                    "nothing was written",
                ],
                helps=["use another name with -o"],
            )


def resolve_output_symlink(path: Path) -> Path:
    """Resolve links to the path of a regular file, existing or not. Raise E0811 for other files."""
    try:
        mode = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return path
    except (OSError, ValueError) as error:
        raise_os_error(error, path)
    if not stat.S_ISLNK(mode):
        check_regular_file(path, mode)
        return path
    try:
        target = Path(os.path.realpath(path, strict=True))
        mode = os.stat(target).st_mode
    except OSError:
        raise_file_type_error(path, "a broken link")
    check_regular_file(path, mode, "a link to ")
    return target


def check_regular_file(path: Path, mode: int, prefix: str = "") -> None:
    """Raise E0811 unless `mode` is the mode of a regular file. The message consists of `prefix` and
    a description of the actual file type.
    """
    if not stat.S_ISREG(mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFLNK: "a link"}
        raise_file_type_error(path, prefix + kinds.get(stat.S_IFMT(mode), "a device or a pipe"))


def raise_file_type_error(path: Path, file_kind: str) -> NoReturn:
    """Raise E0811 because a path is not a regular file."""
    title = f"the output `{escape_text(path)}` is {file_kind}"
    raise_error("E0811", title, notes=["nothing was written"], helps=["use the name of a file"])


def _is_replaceable(path: Path, kind: OutputFileType, content: bytes) -> bool:
    """Return True if a file is missing, is empty, equals `content`, or was written by specc."""
    try:
        size = os.stat(path).st_size
    except (OSError, ValueError):
        return True  # an invalid location is reported later, when the file is written
    if size == 0 or (kind.is_written_by_specc is not None and kind.is_written_by_specc(path)):
        return True
    return bool(content) and size == len(content) and path.read_bytes() == content


def _is_existing_directory(directory: Path) -> bool:
    """Return True if a directory exists and is not a deleted working directory."""
    return directory.is_dir() and directory.stat().st_nlink > 0


def raise_os_error(error: OSError | ValueError, path: Path) -> NoReturn:
    """Raise E0810 to E0815 for an error of the operating system."""
    number = error.errno if isinstance(error, OSError) else None
    name, reason = f"`{escape_text(path)}`", describe_os_error(error)
    directory_fix = "choose a writable directory with -o"
    notes = [NOTHING_WRITTEN]
    code, title, fix = (
        "E0815",
        f"writing {name} failed: {reason}",
        "check the path and the disk, or write to another path with -o",
    )
    if number == errno.ENOENT and not os.path.lexists(path) and _is_existing_directory(path.parent):
        code, fix = "E0812", directory_fix
        title = f"the output {name} cannot be written: files cannot be created in this directory"
        notes = ["it is a virtual file system", NOTHING_WRITTEN]
    elif number == errno.ENOENT:
        code, title = "E0810", f"the directory of the output {name} does not exist"
        note = "a part of its path is a broken link, or was just removed"
        notes = [note, NOTHING_WRITTEN]
        fix = "create the target directory of the link, or use another path"
    elif number in (errno.ENOTDIR, errno.EISDIR):
        file = next((p for p in (path, *path.parents) if p.is_file()), path)
        code, title = "E0811", f"`{escape_text(file)}` is not a directory"
        fix = "use another path"
    elif number in _ACCESS_ERRORS:
        code, title, fix = "E0812", f"the output {name} cannot be written: {reason}", directory_fix
    elif number in _DISK_FULL_ERRORS:
        code, title = "E0813", f"no space left for {name}"
        notes = [f"system error: {reason}", NOTHING_WRITTEN]
        fix = "free some space, or write to another disk with -o"
    raise_error(code, title, notes=notes, helps=[fix])
