"""A package: several graphs in a folder over weights that are stored once, described by `specc.json`.

Files that other programs look for by name are entry files; the weights, and extras that wish it, bear their
content's hash in their name. Entries come last and `specc.json` the very last, so that a program that opens the
package through it finds the former one, the new one, or is told by a hash that they are mixed.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specc import __version__
from specc.input import shown
from specc.output import FileFacts, OutputDirectory
from specc.package_index import HEAD, NAME, Index, former, hash_of, plain, size_of, superseded
from specc.text.diagnostic import fail
from specc.weights.external import Plan
from specc.weights.values import Values
from specc_onnx import legal
from specc_onnx.build import Built
from specc_onnx.package import Metadata, Source, enter, prepare
from specc_onnx.targets import Target
from specc_onnx.weights import How

OURS = b"\x12\x05specc"
"""How a model begins, behind its version, whose producer is specc."""


@dataclass(frozen=True)
class Part:
    """A graph of a package, and the name of its file: `decoder_model.onnx`."""

    graph: Source
    file: str
    metadata: Metadata | None = None


@dataclass(frozen=True)
class Extra:
    """A further file, such as `tokenizer.json`. With `hashed` its name gets its content's hash before the first dot.

    A program finds it by `role`, which is its name if none is given.
    """

    name: str
    content: bytes
    role: str = ""
    hashed: bool = False


@dataclass(frozen=True)
class About:
    """What `specc.json` says beside the files: `facts` are any JSON, `sources` the spec files by name."""

    model: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class WrittenPackage:
    """A package on disk. `data` is the file of ours that holds weights, `plan.linked` those left in the checkpoint."""

    folder: Path
    data: str | None
    built: Mapping[str, Built]
    plan: Plan
    index: Index

    @property
    def files(self) -> tuple[tuple[Path, int], ...]:
        """Every file of the package with its size, `specc.json` last."""
        sizes = [(self.folder / name, facts.bytes) for name, facts in self.index.files.items()]
        return (*sizes, (self.folder / NAME, len(self.index.dump())))


def package_graphs(
    parts: Mapping[str, Part],
    folder: Path,
    values: Values,
    *,
    target: Target,
    about: About,
    opset: int = legal.USUAL,
    weights_as: How = "auto",
    extras: Sequence[Extra] = (),
    stem: str = "model",
    load: bool = True,
) -> WrittenPackage:
    """Write graphs by role into `folder`, which is made if need be, in the place of the package that is there.

    Fails with E0833 where a file would be replaced that no package wrote, and as `package` does. `stem` begins the
    name of the file of weights. Files of the former package that the new one lacks are removed at the end.
    """
    _check_names(parts, extras)
    old = former(folder)
    kept = _kept(folder, old, parts, extras)
    graphs = [part.graph for part in parts.values()]
    prepared = prepare(graphs, folder, values, target, opset, weights_as, load=load)
    linked = _linked_facts(folder, prepared.stored.plan)
    gone = superseded(folder, old) if old else []
    with OutputDirectory(folder, make=True, superseded=[n for n in gone if n not in kept]) as out:
        entries = [(part.file, part.metadata) for part in parts.values()]
        data = enter(out, stem, prepared, values, entries)
        names = _enter_extras(out, extras, kept)
        files = {**out.facts, **kept}
        roles = {role: part.file for role, part in parts.items()}
        index = Index(
            about.model, roles, files, __version__, names, tuple(sorted(kept)), linked, about.facts, about.sources
        )
        out.entry(NAME, [index.dump()])
    return WrittenPackage(folder, data, dict(zip(parts, prepared.built, strict=True)), prepared.stored.plan, index)


def _check_names(parts: Mapping[str, Part], extras: Sequence[Extra]) -> None:
    """Names are ours to give: plain ones, no two the same, also where the system ignores case."""
    names = [*(p.file for p in parts.values()), *(e.name for e in extras)]
    assert parts, "a package has a graph"
    assert all(map(plain, names)), f"{names} are not all plain names"
    assert len({n.lower() for n in names}) == len(names), f"two of {names} are the same"
    assert len({e.role or e.name for e in extras}) == len(extras), "two extras with one role"


def _kept(folder: Path, old: Index | None, parts: Mapping[str, Part], extras: Sequence[Extra]) -> dict[str, FileFacts]:
    """Extras that lie in the folder already, written by someone else, and are as they should be.

    E0833 at a file of another kind. A model that specc made may be replaced: what was compiled can be again.
    """
    ours = set(old.files) - set(old.kept) if old else set()
    for part in parts.values():
        path = folder / part.file
        if part.file not in ours and size_of(path) is not None and not _made_by_us(path):
            _not_ours(path, "a model that specc did not make")
    kept = {}
    for extra in extras:
        path = folder / extra.name
        if extra.hashed or extra.name in ours or (size := size_of(path)) is None:
            continue
        digest = hashlib.sha256(extra.content).hexdigest()
        if size != len(extra.content) or hash_of(path) != digest:
            _not_ours(path, "a file that no package of specc wrote")
        kept[extra.name] = FileFacts(size, digest)
    return kept


def _made_by_us(path: Path) -> bool:
    """Whether a file begins as our models do."""
    try:
        with path.open("rb") as file:
            return OURS in file.read(16)
    except OSError:
        return False


def _not_ours(path: Path, what: str) -> None:
    fail(
        "E0833",
        f"`{shown(str(path))}` would be replaced",
        notes=[f"it is {what}", "nothing was written"],
        helps=["give another folder with -o, or move the file away"],
    )


def _enter_extras(out: OutputDirectory, extras: Sequence[Extra], kept: Mapping[str, FileFacts]) -> dict[str, str]:
    """Write the further files; gives their names by role."""
    names = {}
    for extra in extras:
        name = extra.name
        if extra.hashed:
            begin, dot, end = extra.name.partition(".")
            name = out.hashed(begin, dot + end, [extra.content])
        elif name not in kept:
            out.entry(name, [extra.content])
        names[extra.role or extra.name] = name
    return names


def _linked_facts(folder: Path, plan: Plan) -> dict[str, FileFacts]:
    """Size, and hash of the beginning, of each checkpoint that the graphs refer to."""
    facts = {}
    for location in sorted({place.location for place in plan.linked.values()}):
        path = folder / location
        size, head = size_of(path), hash_of(path, HEAD)
        assert size is not None, f"{location} was read a moment ago"
        assert head is not None, f"{location} was read a moment ago"
        facts[location] = FileFacts(size, head)
    return facts


def json_extra(name: str, content: Any, role: str = "") -> Extra:
    """A JSON file, such as `genai_config.json`, in one form: keys in the order given, two spaces a level."""
    return Extra(name, json.dumps(content, ensure_ascii=False, indent=2).encode() + b"\n", role)
