"""`specc.json`: the files of a package with sizes and hashes."""

import hashlib
import json
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NoReturn

from specc.artifact import weight_files as beside
from specc.artifact.weight_files import (
    WeightFileFacts,
    file_sha256,
    is_file_size,
    is_path_below,
    is_sha256,
    regular_file_size,
)
from specc.diagnostics.diagnostic import Failed, raise_error
from specc.diagnostics.object_repr import format_repr
from specc.io.atomic_write import FileDigest
from specc.io.json_io import JsonFields, open_record, parse_strict_json
from specc.io.json_io import to_json_value as as_json
from specc.io.safe_read import UnreadableFile, escape_text, read_regular_file

INDEX_FILE = "specc.json"
FORMAT_VERSION = 1
MAX_BYTES = 64 * 2**20
MAX_FILES = 10_000
MAX_GRAPHS = 64

BLANK_HASH = "0" * 64
_PORTABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")


@dataclass(frozen=True, kw_only=True)
class PackageIndex:
    """`graphs` and `extras` say which file has which role; `files` are those of the
    package itself.

    `kept` are files that were there before, as they were to be written: a later package
    leaves them. `linked` are checkpoints, by path below the folder. `about` is what the
    program that opens the package should know of it, JSON; `sources` are the spec files
    by name. With `every_load` contents of weights are compared at every opening.
    """

    model: str
    graphs: Mapping[str, str]
    files: Mapping[str, FileDigest]
    version: str
    extras: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    linked: Mapping[str, WeightFileFacts] = field(default_factory=dict)
    about: Mapping[str, object] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    every_load: bool = False

    def __repr__(self) -> str:
        return format_repr(f"index of {self.model}: {', '.join(self.graphs)}")

    def dump(self) -> bytes:
        """As JSON, the same bytes for the same package, with their own hash in it."""
        data = {
            "format": FORMAT_VERSION,
            "specc": self.version,
            "model": self.model,
            "graphs": dict(self.graphs),
            "extras": dict(self.extras),
            "files": as_json(self.files),
            "kept": list(self.kept),
            "linked": as_json(self.linked),
            "every_load": self.every_load,
            "about": dict(self.about),
            "sources": dict(self.sources),
            "seal": BLANK_HASH,
        }
        # Sorted and never dated: a package compiled twice has the same bytes.
        text = json.dumps(data, ensure_ascii=False, sort_keys=True, indent=1)
        return _sealed(text.encode(errors="backslashreplace") + b"\n")


def _sealed(data: bytes) -> bytes:
    """The bytes of an index with their own hash, made while zeros stood in its place."""
    return data.replace(BLANK_HASH.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def is_unmodified(data: bytes) -> bool:
    """Whether an index is as it was written, to the last byte."""
    try:
        found = parse_strict_json(data.decode("utf-8"))
    except ValueError:
        return False
    # The seal is put back to the zeros that stood there when it was made.
    seal = found.get("seal") if isinstance(found, dict) else None
    if not isinstance(seal, str) or not is_sha256(seal):
        return False
    return _sealed(data.replace(seal.encode(), BLANK_HASH.encode(), 1)) == data


def is_plain_file_name(name: str) -> bool:
    """Whether a name is that of a file in the folder itself, on any system, and not the index's."""
    return (
        _PORTABLE_NAME.fullmatch(name) is not None and not name.endswith(".") and name != INDEX_FILE
    )


def is_package_directory(path: str | Path) -> bool:
    """Whether a path is a folder with an index, as a checkpoint's is not."""
    try:
        return (Path(path) / INDEX_FILE).is_file()
    except (OSError, ValueError):
        return False


def read_index(folder: Path, *, contents: bool = False) -> PackageIndex:
    """The index of a package, with `contents` as it was written to the last byte.

    E0802 where there is none that can be read, E0831 where it is damaged.
    """
    where = folder / INDEX_FILE
    try:
        data = read_regular_file(where, MAX_BYTES)
    except UnreadableFile as error:
        raise_error(
            "E0802",
            f"the package `{escape_text(str(folder))}` cannot be read: its `{INDEX_FILE}`: "
            f"{error.reason}",
            helps=["a folder is a package if `specc compile` wrote it with --graphs"],
        )
    index = parse_index(data, escape_text(str(where)))
    if contents and not is_unmodified(data):
        _damaged(escape_text(str(where)), "its content is not what was written with the package")
    return index


def parse_index(data: bytes, where: str) -> PackageIndex:
    """An index from its bytes; `where` names it in messages. E0831 for an invalid one."""
    found = open_record(data, FORMAT_VERSION, "package", partial(_damaged, where))
    files = _files(found, where)
    index = PackageIndex(
        model=found.text("model"),
        graphs=found.string_map("graphs"),
        files=files,
        version=found.text("specc"),
        extras=found.string_map("extras"),
        kept=_kept(found, files, where),
        linked=_linked(found, where),
        about=found.table("about"),
        sources=found.string_map("sources"),
        every_load=found.get_optional("every_load") is True,
    )
    _check_roles(index, where)
    return index


def _files(data: JsonFields, where: str) -> dict[str, FileDigest]:
    """The package's own files, which lie in its folder under plain names."""
    found = {}
    for name, facts in _at_most(data.table("files"), where).items():
        match facts:
            case {"bytes": int() as size, "sha256": str(digest)} if is_file_size(
                size
            ) and is_sha256(digest):
                found[name] = FileDigest(size, digest)
            case _:
                _damaged(where, f"`{escape_text(name)[:200]}` has no size or no hash")
    # Names are joined to the folder later, so none may lead out of it, here once for
    # all.
    for name in found:
        if not is_plain_file_name(name):
            _damaged(where, f"`{escape_text(name)[:200]}` is no plain name of a file in it")
    return found


def _kept(data: JsonFields, files: Collection[str], where: str) -> tuple[str, ...]:
    """The files that a later package leaves, some of those in the folder."""
    listed = data.listed("kept") if "kept" in data.names() else []
    names = tuple(name for name in listed if isinstance(name, str) and name in files)
    if len(names) < len(listed):
        _damaged(where, "`kept` is no list of its files")
    return names


def _linked(data: JsonFields, where: str) -> dict[str, WeightFileFacts]:
    """The checkpoints that weights are read from, in or below the folder."""
    found = beside.parse_weight_files(_at_most(data.table("linked"), where))
    if found is None:
        _damaged(where, "`linked` has a file without size or hashes")
    for path in found:
        if not is_path_below(path):
            _damaged(where, f"`{escape_text(path)[:200]}` does not lie below it")
    return found


def _at_most(listed: dict[str, object], where: str) -> dict[str, object]:
    if len(listed) > MAX_FILES:
        _damaged(where, f"it lists more than {MAX_FILES} files")
    return listed


def _check_roles(index: PackageIndex, where: str) -> None:
    """Every role is played by a file of the package, and every graph by its own."""
    for role, name in (*index.graphs.items(), *index.extras.items()):
        if name not in index.files:
            _damaged(where, f"`{escape_text(role)[:200]}` is a file it does not describe")
    # One file under many roles would be opened and checked that many times.
    twice = len({*index.graphs.values()}) < len(index.graphs)
    if len(index.graphs) > MAX_GRAPHS or twice:
        _damaged(where, f"it names more than {MAX_GRAPHS} graphs, or one of them twice")
    if not index.graphs:
        _damaged(where, "it names no graph")


def read_former_index(folder: Path) -> PackageIndex | None:
    """The index of the package that a new one replaces; None where it has none to use."""
    try:
        return read_index(folder)
    except Failed:
        return None


def find_superseded_files(folder: Path, index: PackageIndex) -> list[str]:
    """The files of a former package that are what it wrote, and so may go when a new
    one stands.

    One whose name bears its hash is known by name and size; another has its content
    compared.
    """
    found = []
    for name, facts in index.files.items():
        # What was there before the package, or was changed since, is somebody else's
        # now.
        if name in index.kept or regular_file_size(folder / name) != facts.bytes:
            continue
        named = re.fullmatch(r".*-([0-9a-f]{16})(\.[^-]*)?", name)
        if (named and facts.sha256.startswith(named[1])) or file_sha256(
            folder / name
        ) == facts.sha256:
            found.append(name)
    return found


def _damaged(where: str, why: str) -> NoReturn:
    title = f"the package cannot be opened: `{where}` cannot be used"
    raise_error(
        "E0831",
        title,
        notes=[why],
        helps=["compile the package again, or copy its folder as a whole"],
    )
