"""A package: several graphs in a folder over weights that are stored once, described by
`specc.json`.

Files that other programs look for by name are entry files; the weights, and extras that
wish it, bear their content's hash in their name. Entries come last and `specc.json` the
very last, so that a program that opens the package through it finds the former one, the
new one, or is told by a hash that they are mixed.
"""

import hashlib
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from specc.artifact.external import hash_of, size_of
from specc.artifact.index import NAME, Index, former, plain, superseded
from specc.backend import About, Extra, How, Part, Written
from specc.files.ours import is_index, is_model, unread
from specc.files.place import no_file, refuse, refuse_inputs, refuse_unbearable, settled
from specc.files.write import FileFacts, OutputDirectory
from specc.ir.target import Target
from specc.version import __version__
from specc.weights.values import Values
from specc_onnx.lower import legal
from specc_onnx.write.package import enter, prepare


def package_graphs(
    parts: Mapping[str, Part],
    folder: Path,
    values: Values,
    *,
    target: Target,
    about: About,
    opset: int = legal.USUAL,
    weights_as: How = "auto",
    dtype: str = "",
    extras: Sequence[Extra] = (),
    stem: str = "model",
    load: bool = True,
    inputs: Sequence[Path] = (),
    force: bool = False,
    every_load: bool = False,
) -> Written:
    """Write graphs by role into `folder`, which is made if need be, in the place of the
    package that is there.

    Fails with E0833 where a file would be replaced that specc did not write, unless
    `force` says so, with E0814 where one is among the `inputs`, and as `package` does.
    `stem` begins the name of the file of weights. With `every_load` contents are
    compared at every opening.
    """
    folder = settled(folder)
    refuse_unbearable(folder)
    _check_names(parts, extras)
    old = former(folder)
    kept = _check_places(folder, old, parts, extras, inputs=inputs, force=force)
    prepared = prepare(
        [part.graph for part in parts.values()],
        folder,
        values,
        target=target,
        opset=opset,
        weights_as=weights_as,
        dtype=dtype,
        load=load,
    )
    gone = unread(folder, superseded(folder, old), but=old.files) if old else []
    with OutputDirectory(folder, superseded=[n for n in gone if n not in kept]) as out:
        entries = [(part.file, part.metadata) for part in parts.values()]
        data = enter(out, stem, prepared, values, entries)
        index = Index(
            model=about.model,
            graphs={role: part.file for role, part in parts.items()},
            extras=_enter_extras(out, extras, kept),
            # only now: what is written is in `out.facts`
            files={**out.facts, **kept},
            version=__version__,
            kept=tuple(sorted(kept)),
            linked=prepared.stored.beside,
            about=about.facts,
            sources=about.sources,
            every_load=every_load,
        )
        out.entry(NAME, [index.dump()])
    return Written(folder, data, prepared.stored.plan, _sizes(folder, index))


def _sizes(folder: Path, index: Index) -> tuple[tuple[Path, int], ...]:
    """Every file with its bytes; the index, which does not list itself, comes last."""
    sizes = [(folder / name, facts.bytes) for name, facts in index.files.items()]
    return (*sizes, (folder / NAME, len(index.dump())))


def _check_places(
    folder: Path,
    old: Index | None,
    parts: Mapping[str, Part],
    extras: Sequence[Extra],
    *,
    inputs: Sequence[Path],
    force: bool,
) -> dict[str, FileFacts]:
    """That every name is free for the package, or what lies there is ours to replace;
    gives the extras that are there already.
    """
    due = [
        *(p.file for p in parts.values()),
        *(e.name for e in extras if not e.hashed),
        NAME,
    ]
    for name in due:
        _check_place(folder / name)
    kept = _kept(folder, old, extras)
    for name in (n for n in due if n not in kept):
        refuse_inputs(folder / name, inputs)
        if not force:
            _check_ours(folder / name, old)
    return kept


def _check_names(parts: Mapping[str, Part], extras: Sequence[Extra]) -> None:
    """Names are ours to give: plain ones, no two the same, also where the system ignores case."""
    names = [*(p.file for p in parts.values()), *(e.name for e in extras)]
    assert parts, "a package has a graph"
    assert all(map(plain, names)), f"{names} are not all plain names"
    assert len({n.lower() for n in names}) == len(names), f"two of {names} are the same"
    assert len({e.role or e.name for e in extras}) == len(extras), (
        "two extras with one role"
    )


def _kept(
    folder: Path, old: Index | None, extras: Sequence[Extra]
) -> dict[str, FileFacts]:
    """Extras that lie in the folder already, written by someone else, and are as they should be."""
    ours = _listed(old)
    kept = {}
    for extra in extras:
        path = folder / extra.name
        if extra.hashed or extra.name in ours:
            continue
        digest = hashlib.sha256(extra.content).hexdigest()
        if size_of(path) == len(extra.content) and hash_of(path) == digest:
            kept[extra.name] = FileFacts(len(extra.content), digest)
    return kept


def _listed(old: Index | None) -> set[str]:
    """The files that the former package wrote."""
    return set(old.files) - set(old.kept) if old else set()


def _check_place(path: Path) -> None:
    """E0811 where a name that the package needs is that of a folder, a device or a
    link: a package holds files.
    """
    try:
        mode = os.lstat(path).st_mode
    except (OSError, ValueError):
        return  # nothing there, or writing will tell
    if not stat.S_ISREG(mode):
        kinds = (
            (stat.S_ISDIR, "a folder"),
            (stat.S_ISLNK, "a link, and a package holds the files themselves"),
        )
        what = next((what for test, what in kinds if test(mode)), "a device or a pipe")
        no_file(path, what)


def _check_ours(path: Path, old: Index | None) -> None:
    """E0833 at a file that specc did not write: not listed by the former package as it
    is, nor ours by its content.
    """
    size = size_of(path)
    # nothing is lost with an empty file
    if not size or _made_by_specc(path):
        return
    facts = old.files[path.name] if old and path.name in _listed(old) else None
    if facts is None or facts.bytes != size or hash_of(path) != facts.sha256:
        what = (
            "a model that specc did not make"
            if path.suffix == ".onnx"
            else "a file that no package of specc wrote"
        )
        refuse(
            path,
            f"it is {what}",
            "give another folder with -o, or say --force to replace it",
        )


def _made_by_specc(path: Path) -> bool:
    """Whether a file's own content says so: an index, or a model with our metadata."""
    if path.name == NAME:
        return is_index(path)
    return path.suffix == ".onnx" and is_model(path)


def _enter_extras(
    out: OutputDirectory, extras: Sequence[Extra], kept: Mapping[str, FileFacts]
) -> dict[str, str]:
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
