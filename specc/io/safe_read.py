"""Read regular files with a size limit, and reject pipes and devices, which could block."""

import hashlib
import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn, Self

from specc.diagnostics.diagnostic import Span, raise_error
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.io.platform_and_signals import get_file_read_flags


class Closeable(ABC):
    """A context manager that closes a resource on exit."""

    @abstractmethod
    def close(self) -> None:
        """Release the resource. Further calls have no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(frozen=True)
class UnreadableFileError(Exception):
    """Raised if a file cannot be read. The exception message contains the reason."""

    reason: str


@dataclass(frozen=True)
class FileTooLargeError(UnreadableFileError):
    """Raised if a file's `size` in bytes exceeds the limit, or if the file grew during reading."""

    size: int


def suggest_similar_path(
    path: Path, is_candidate: Callable[[Path], bool], display_name: str = ""
) -> list[str]:
    """Suggest the existing file name that is most similar to the name of a missing `path`. Return
    no text if `path` exists. `display_name` is the path shown in messages.
    """
    if os.path.lexists(path):
        return []
    try:
        names = [p.name for p in sorted(path.parent.iterdir()) if is_candidate(p)]
    except (OSError, ValueError):  # the parent path is not a readable directory
        return []
    similar = find_similar_name(path.name, names)
    shown_path = Path(display_name or path)
    return [format_suggestion(escape_text(shown_path.with_name(similar)))] if similar else []


def escape_text(text: object, keep: str = "") -> str:
    """Escape lone surrogates and control characters for printing, except characters in `keep`."""
    return "".join(c if c.isprintable() or c in keep else ascii(c)[1:-1] for c in str(text))


def quote_argument(text: object) -> str:
    """Format a text as an argument of a shell command that a message shows."""
    from shlex import quote  # import here, because few commands print such a message

    return quote(escape_text(text))


def has_lone_surrogate(text: str) -> bool:
    """Return True if a text contains a lone surrogate, which UTF-8 cannot encode."""
    return not text.isascii() and any("\ud800" <= c <= "\udfff" for c in text)


def open_regular_file(path: str | os.PathLike[str]) -> int:
    """Open a regular file and return its descriptor. Raise UnreadableFileError on failure."""
    try:
        # `get_file_read_flags` includes O_NONBLOCK, so opening a FIFO that has no writer does not
        # block
        fd = os.open(path, get_file_read_flags())
    except FileNotFoundError as error:
        if os.path.islink(path):
            # broken symbolic links occur in a hub cache after its blobs were deleted
            link_target = escape_text(os.readlink(path))
            raise UnreadableFileError(
                f"it is a link to `{link_target}`, which does not exist"
            ) from None
        raise UnreadableFileError(describe_os_error(error)) from None
    except (OSError, ValueError) as error:
        raise UnreadableFileError(describe_os_error(error)) from None
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    raise UnreadableFileError(
        "it is a directory" if stat.S_ISDIR(mode) else "it is a pipe or a device, not a file"
    )


def read_regular_file(path: str | os.PathLike[str], max_bytes: int) -> bytes:
    """Read a file. Raise UnreadableFileError for an unreadable or too large file."""
    fd = open_regular_file(path)
    with os.fdopen(fd, "rb") as file:
        size = os.fstat(fd).st_size
        try:
            data = file.read(max_bytes + 1) if size <= max_bytes else b""
        except OSError as error:
            raise UnreadableFileError(describe_os_error(error)) from None
    # a file that grows during reading is reported as too large
    if max(size, len(data)) > max_bytes:
        raise FileTooLargeError(f"it is larger than {max_bytes:,} bytes".replace(",", " "), size)
    return data


def compute_file_sha256(path: str | os.PathLike[str], max_bytes: int | None = None) -> str | None:
    """Return the SHA-256 of a file or of its first `max_bytes` bytes, or None on failure."""
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            if max_bytes is not None:
                return hashlib.sha256(file.read(max_bytes)).hexdigest()
            return hashlib.file_digest(file, "sha256").hexdigest()
    except (UnreadableFileError, OSError):
        return None


def resolve_symlinks(path: Path) -> Path:
    """Resolve the symbolic links in a path. Raise UnreadableFileError if they form a cycle."""
    try:
        return path.resolve()
    except (OSError, RuntimeError, ValueError) as error:
        raise UnreadableFileError(describe_os_error(error)) from None


def is_safe_relative_path(path: str) -> bool:
    """Return True if a path with `/` separators is portable and does not leave its directory."""
    parts = path.split("/")
    # On Windows, drives and alternate data streams contain a colon, and paths contain backslashes.
    return bool(path) and not any(
        p in ("", ".", "..") or "\0" in p or "\\" in p or ":" in p for p in parts
    )


def get_regular_file_size(path: Path) -> int | None:
    """Return the size in bytes of a regular file that is not a link, or None for other paths."""
    try:
        status = os.lstat(path)
    except (OSError, ValueError):
        return None
    return status.st_size if stat.S_ISREG(status.st_mode) else None


def describe_os_error(error: OSError | ValueError | RuntimeError) -> str:
    """Return the message of an operating system error in lower case."""
    match error:
        case OSError(strerror=str(message)) if message:
            return message[0].lower() + message[1:]
        case RuntimeError():  # Python 3.11 raises RuntimeError for a cycle
            return "its symbolic links form a cycle"
        case ValueError():
            return "the name contains a NUL character"
    return "it cannot be opened"


MAX_TEXT_BYTES = 64 << 20
MAX_ARRAY_BYTES = 2 << 30
MAX_IMAGE_BYTES = 512 << 20


def read_required_file(
    path: str | os.PathLike[str], max_bytes: int, description: str = "", span: Span | None = None
) -> bytes:
    """Read a regular file of at most `max_bytes` bytes. Raise E0802 if the file is unreadable or
    too large. `description` names the file in the message.
    """
    try:
        return read_regular_file(path, max_bytes)
    except UnreadableFileError as error:
        description = description or f"`{escape_text(path)}`"
        raise_error("E0802", f"{description} cannot be read: {error.reason}", span)


def read_input_file(path: str, max_bytes: int) -> bytes:
    """Read an image or array file. Raise E0802 (unreadable) or E0904 (more than `max_bytes`)."""
    try:
        return read_regular_file(path, max_bytes)
    except FileTooLargeError as error:
        if error.size <= max_bytes:
            raise_file_too_large_error(path, "it grew during reading")
        actual, allowed = (f"{n:,}".replace(",", " ") for n in (error.size, max_bytes))
        raise_file_too_large_error(path, f"it has {actual} bytes, the limit is {allowed}")
    except UnreadableFileError as error:
        helps = suggest_similar_path(Path(path), lambda p: p.suffix == Path(path).suffix)
        helps += ["check the path, which is relative to the working directory"]
        raise_unreadable_file_error(path, error.reason, helps[0])


def raise_file_too_large_error(path: str, reason: str) -> NoReturn:
    """Raise E0904 for a file that is too large."""
    raise_error(
        "E0904",
        f"`{escape_text(path)}` exceeds the size limit",
        notes=[reason],
        helps=["use a smaller image or array, or split it into several runs"],
    )


def raise_unreadable_file_error(path: object, reason: str, fix: str) -> NoReturn:
    """Raise E0802 for a file that cannot be read."""
    raise_error("E0802", f"cannot read `{escape_text(path)}`: {reason}", helps=[fix])


_MODEL_ID = re.compile(r"(?:[\w-][\w.-]*/)?[\w-][\w.-]*")
_MAX_REVISION_BYTES = 200
"""Maximum size in bytes of a revision file in a hub cache."""


def suggest_cached_snapshot(directory: Path) -> str:
    """Return a help text with a snapshot's path if a directory is in the hub cache, or ""."""
    snapshot = next(_iterate_cached_models(directory), None)
    if snapshot is None:
        return ""
    kind = "one revision" if snapshot.parents[1] == directory else "one model"
    return f"this is the Hugging Face cache: pass the directory of {kind}, {escape_text(snapshot)}"


def suggest_local_model_path(name: str) -> str:
    """Return a help text that suggests a local path if `name` looks like a hub model, or ""."""
    if not _MODEL_ID.fullmatch(name):
        return ""
    environment_path = os.environ.get("HF_HOME", "")
    huggingface_directory = (
        Path(environment_path) if environment_path else Path.home() / ".cache" / "huggingface"
    )
    cache = Path(os.environ.get("HF_HUB_CACHE", "") or huggingface_directory / "hub")
    model_directory = cache / f"models--{name.replace('/', '--')}"
    if (snapshot := next(_iterate_cached_models(model_directory), None)) is not None:
        return f"a model with this name is cached in {escape_text(snapshot)}: pass that directory"
    if "/" not in name:
        return ""
    return f"for a model of the Hugging Face Hub, pass `hf:{name}`"


def _iterate_cached_models(directory: Path) -> Iterator[Path]:
    """Yield the latest snapshot of each model in the given directory, which is a hub cache, its
    parent, or the directory of one cached model.
    """
    with suppress(OSError):
        if (directory / "snapshots").is_dir():
            yield from _iterate_newest_snapshot(directory)
            return
        for hub in (directory, directory / "hub"):
            for model in sorted(hub.glob("models--*")):
                yield from _iterate_newest_snapshot(model)


def _iterate_newest_snapshot(model_directory: Path) -> Iterator[Path]:
    """Yield the latest snapshot of a cached model, if this snapshot has a config.json."""
    snapshots = sorted(p.parent for p in (model_directory / "snapshots").glob("*/config.json"))
    with suppress(OSError, ValueError):
        if (model_directory / "refs" / "main").stat().st_size <= _MAX_REVISION_BYTES:
            commit = (model_directory / "refs" / "main").read_text(encoding="ascii").strip()
            snapshots.sort(key=lambda snapshot: snapshot.name != commit)
    yield from snapshots[:1]
