"""`specc.json`: what a package of several graphs consists of, every file with its size and hash.

It is written last and read first; whoever opens a package believes no file that it does not describe. It comes
from outside, so its size is capped, every part is checked, and a name in it never leaves the package's folder.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from specc import beside
from specc.beside import Beside, below, hash_of, size_of
from specc.input import Unreadable, read_regular, shown
from specc.output import FileFacts
from specc.text.diagnostic import Failed, fail

NAME = "specc.json"
FORMAT = 1
MOST_BYTES = 64 * 2**20
MOST_FILES = 10_000
MOST_GRAPHS = 64

BLANK = "0" * 64
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,199}")
_HASH = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Index:
    """`graphs` and `extras` say which file has which role; `files` are those of the package itself.

    `kept` are files that were there before, as they were to be written: a later package leaves them. `linked` are
    checkpoints, by path below the folder. `about` is what the program that opens the package should know of it, JSON;
    `sources` are the spec files by name. With `every_load` contents of weights are compared at every opening.
    """

    model: str
    graphs: Mapping[str, str]
    files: Mapping[str, FileFacts]
    version: str
    extras: Mapping[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()
    linked: Mapping[str, Beside] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    every_load: bool = False

    def dump(self) -> bytes:
        """As JSON, the same bytes for the same package, with their own hash in it."""
        data = {
            "format": FORMAT,
            "specc": self.version,
            "model": self.model,
            "graphs": dict(self.graphs),
            "extras": dict(self.extras),
            "files": {n: {"bytes": f.bytes, "sha256": f.sha256} for n, f in self.files.items()},
            "kept": list(self.kept),
            "linked": {n: f.dump() for n, f in self.linked.items()},
            "every_load": self.every_load,
            "about": dict(self.about),
            "sources": dict(self.sources),
            "seal": BLANK,
        }
        text = json.dumps(data, ensure_ascii=False, sort_keys=True, indent=1)
        return _sealed(text.encode(errors="backslashreplace") + b"\n")


def _sealed(data: bytes) -> bytes:
    """The bytes of an index with their own hash, made while zeros stood in its place."""
    return data.replace(BLANK.encode(), hashlib.sha256(data).hexdigest().encode(), 1)


def unbroken(data: bytes) -> bool:
    """Whether an index is as it was written, to the last byte."""
    try:
        seal = json.loads(data)["seal"].encode()
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return False
    blank = data.replace(seal, BLANK.encode(), 1) if _HASH.fullmatch(seal.decode(errors="replace")) else b""
    return _sealed(blank) == data


def plain(name: str) -> bool:
    """Whether a name is that of a file in the folder itself, on any system, and not the index's."""
    return _PLAIN.fullmatch(name) is not None and not name.endswith(".") and name != NAME


def is_package(path: str | Path) -> bool:
    """Whether a path is a folder with an index, as a checkpoint's is not."""
    try:
        return (Path(path) / NAME).is_file()
    except (OSError, ValueError):
        return False


def read_index(folder: Path, *, contents: bool = False) -> Index:
    """The index of a package, with `contents` as it was written to the last byte.

    E0802 where there is none that can be read, E0831 where it is damaged.
    """
    where = folder / NAME
    try:
        data = read_regular(where, MOST_BYTES)
    except Unreadable as error:
        fail(
            "E0802",
            f"the package `{shown(str(folder))}` cannot be read: its `{NAME}`: {error.reason}",
            helps=["a folder is a package if `specc compile` wrote it with --for"],
        )
    index = load(data, shown(str(where)))
    if contents and not unbroken(data):
        _damaged(shown(str(where)), "its content is not what was written with the package")
    return index


def load(data: bytes, where: str) -> Index:
    """An index from its bytes; `where` is what messages call it. E0831 for one that cannot be used."""
    try:
        found = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError):
        _damaged(where, "it is not JSON")
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        _damaged(where, "it has another format; compile the package again")
    files = _facts(found, "files", "sha256", where)
    kept = found.get("kept", [])
    if not isinstance(kept, list) or not all(isinstance(n, str) and n in files for n in kept):
        _damaged(where, "`kept` is no list of its files")
    for name in files:
        if not plain(name):
            _damaged(where, f"`{shown(name)[:200]}` is no plain name of a file in it")
    index = Index(
        _text(found, "model", where),
        _texts(found, "graphs", where),
        files,
        _text(found, "specc", where),
        _texts(found, "extras", where),
        tuple(kept),
        _linked(found, where),
        _dict(found, "about", where),
        _texts(found, "sources", where),
        found.get("every_load") is True,
    )
    for path in index.linked:
        if not below(path):
            _damaged(where, f"`{shown(path)[:200]}` does not lie below it")
    for role, name in (*index.graphs.items(), *index.extras.items()):
        if name not in files:
            _damaged(where, f"`{shown(role)[:200]}` is a file it does not describe")
    if len(index.graphs) > MOST_GRAPHS or len({*index.graphs.values()}) < len(index.graphs):
        _damaged(where, f"it names more than {MOST_GRAPHS} graphs, or one of them twice")
    if not index.graphs:
        _damaged(where, "it names no graph")
    return index


def former(folder: Path) -> Index | None:
    """The index of the package that a new one replaces; None where there is none that can be used."""
    try:
        return read_index(folder)
    except Failed:
        return None


def superseded(folder: Path, index: Index) -> list[str]:
    """The files of a former package that are what it wrote, and so may go when a new one stands.

    One whose name bears its hash is known by name and size; another has its content compared.
    """
    found = []
    for name, facts in index.files.items():
        if name in index.kept or size_of(folder / name) != facts.bytes:
            continue
        named = re.fullmatch(r".*-([0-9a-f]{16})(\.[^-]*)?", name)
        if (named and facts.sha256.startswith(named[1])) or hash_of(folder / name) == facts.sha256:
            found.append(name)
    return found


def _facts(data: Mapping[str, Any], key: str, hash_key: str, where: str) -> dict[str, FileFacts]:
    found = {}
    listed = _dict(data, key, where)
    if len(listed) > MOST_FILES:
        _damaged(where, f"it lists more than {MOST_FILES} files")
    for name, facts in listed.items():
        size, digest = (facts.get("bytes"), facts.get(hash_key)) if isinstance(facts, dict) else (None, None)
        if type(size) is not int or not 0 <= size < 2**53 or not isinstance(digest, str) or not _HASH.fullmatch(digest):
            _damaged(where, f"`{shown(name)[:200]}` has no size or no hash")
        found[name] = FileFacts(size, digest)
    return found


def _linked(data: Mapping[str, Any], where: str) -> dict[str, Beside]:
    listed = _dict(data, "linked", where)
    if len(listed) > MOST_FILES:
        _damaged(where, f"it lists more than {MOST_FILES} files")
    found = beside.load(listed)
    if found is None:
        _damaged(where, "`linked` has a file without size or hashes")
    return found


def _text(data: Mapping[str, Any], key: str, where: str) -> str:
    if not isinstance(data.get(key), str):
        _damaged(where, f"`{key}` is missing")
    return str(data[key])


def _dict(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    found = data.get(key)
    if not isinstance(found, dict):
        _damaged(where, f"`{key}` is missing")
    return found


def _texts(data: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    found = _dict(data, key, where)
    if not all(isinstance(v, str) for v in found.values()):
        _damaged(where, f"`{key}` holds something that is no text")
    return found


def _damaged(where: str, why: str) -> NoReturn:
    title = f"the package cannot be opened: `{where}` cannot be used"
    fail("E0831", title, notes=[why], helps=["compile the package again, or copy its folder as a whole"])
