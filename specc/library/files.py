"""Where specs are: shipped ones inside the wheel or at the top of a checkout, the
user's on disk.

A file may use others in or below its own folder, and shipped ones by name. The name of a
built-in spec always means that spec, whatever the working directory holds: a file or
directory of the same name is given as a path, `./llama`.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NoReturn

from specc.elaborate.context import Context, Env, Module
from specc.elaborate.modules import module_of
from specc.elaborate.published import published
from specc.files import hub
from specc.files.read import Unreadable, resolved
from specc.lang import tree
from specc.lang.read import read
from specc.library.standard import Standard, source_of
from specc.text.diagnostic import fail
from specc.text.source import Source, Span
from specc.text.suggest import suggest

SUFFIXES = (".specc", ".yaml", ".yml")


def root() -> Path:
    """The `specs/` folder: `specc/_specs` in a wheel, `<checkout>/specs` in a checkout."""
    packaged = Path(__file__).parents[1] / "_specs"
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "specs"


@cache
def shipped() -> Mapping[str, Path]:
    """Model specs that come with specc, by name, as they are when it starts."""
    return {
        p.stem: p for p in sorted((root() / "models").iterdir()) if p.suffix in SUFFIXES
    }


def is_built_in(spec: str) -> bool:
    """Return whether a SPEC argument names a built-in spec rather than a path."""
    return spec in shipped()


def explicit_path(name: str) -> str:
    """Return a path so that it is not read as the name of a built-in spec: `./llama`."""
    return os.path.join(".", name) if is_built_in(name) else name


def shadowed_path(spec: str) -> str:
    """Return the path to write for a file or directory that has the name of the built-in
    spec `spec`; empty where there is none.
    """
    if is_built_in(spec) and os.path.lexists(spec):
        return explicit_path(spec)
    return ""


def shadow_note(spec: str) -> str:
    """Return the note that a file or directory has the name of the built-in spec; empty
    where there is none.
    """
    path = shadowed_path(spec)
    return path and (
        f"`{spec}` is the built-in spec; write `{path}` for the file or directory "
        "of that name"
    )


def _no_config(folder: str) -> NoReturn:
    """A folder that is given as a spec, and is no checkpoint."""
    cached = hub.advice_for_folder(Path(folder))
    fail(
        "E0222",
        f"the folder `{folder}` holds no config.json, which says what model it is",
        helps=[cached]
        if cached
        else [
            "get the config.json that belongs to the weights",
            f"or name the spec: specc compile SPEC --weights {folder}",
        ],
    )


def _unknown(spec: str, models: Iterable[str]) -> NoReturn:
    """A name that is no spec's and no folder's."""
    helps = suggest(spec, models, f"shipped specs: {', '.join(models)}")
    if len(Path(spec).parts) > 1:
        # a path; no spec that comes with specc has such a name
        helps = ["check the path; it is taken relative to the folder you are in"]
    if fetched := hub.advice_for_name(spec):
        helps.append(fetched)
    fail(
        "E0222",
        f"there is no spec file and no shipped spec called `{spec}`",
        helps=helps,
    )


def _resolved(path: Path, shown: str, span: Span | None) -> Path:
    """Where a path leads. E0802 where its links lead in a circle."""
    try:
        return resolved(path)
    except Unreadable as error:
        fail("E0802", f"the spec file `{shown}` cannot be read: {error.reason}", span)


def read_file(path: Path, shown: str, span: Span | None = None) -> tree.File:
    """A spec file as a tree. E0802 when it cannot be read."""
    source = source_of(path, shown, span)
    return _read(source.name, source.text)


@lru_cache(maxsize=256)
def _read(name: str, text: str) -> tree.File:
    """The tree of a text, which is made once: trees never change."""
    return read(Source(name, text))


@cache
def _standard() -> Standard:
    """std, of which all commands of a process share what they read."""
    return Standard(root() / "std", root() / "std.json")


@dataclass
class Files:
    """The library of one command: std, and files read once each.

    `unsaved` are texts that an editor holds, by where they will lie; they go before what
    lies there.
    """

    modules: dict[Path, Module] = field(default_factory=dict)
    unsaved: Mapping[Path, str] = field(default_factory=dict)

    @cached_property
    def _std(self) -> Mapping[str, tuple[tree.Block | tree.Definition, Module]]:
        return _standard()

    def standard(self, name: str) -> tuple[tree.Block | tree.Definition, Module] | None:
        """The std block or definition of that name."""
        return self._std.get(name)

    def standard_names(self) -> tuple[str, ...]:
        """Every name std defines."""
        return tuple(self._std)

    def open(self, spec: str | Source) -> Module:
        """Return the module of a built-in spec's name, of a path, or of a text."""
        if isinstance(spec, Source):
            return self._written(spec)
        models = shipped()
        if spec in models:
            return self.module(models[spec], spec=models[spec].name)
        path = Path(spec)
        if path.suffix not in SUFFIXES and not path.is_file():
            if path.is_dir() and not (path / "config.json").exists():
                _no_config(spec)
            _unknown(spec, models)
        return self.module(path, spec=spec)

    def _written(self, source: Source) -> Module:
        """The module of a text that lies in no file; paths in it are seen from the
        current folder.
        """
        made = module_of(read(source), source.name)
        made.folder = _resolved(Path(), source.name, None)
        # no file is called so, whatever the text is called
        self.modules[made.folder / "\0"] = made
        return made

    def module(self, path: Path, spec: str, span: Span | None = None) -> Module:
        """The module of a file, read once."""
        key = _resolved(path, spec, span)
        # By where it lies, not by how it is called: `./a.specc` and `a.specc` are one
        # module, with one set of items.
        if key not in self.modules:
            text = self.unsaved.get(key)
            file = read_file(path, spec, span) if text is None else _read(spec, text)
            made = module_of(file, spec)
            made.folder = key.parent
            # with texts of an editor in sight, a shipped file may use one of those
            made.shipped = key == shipped().get(key.stem) and not self.unsaved
            self.modules[key] = made
        return self.modules[key]

    def used(self, path: str, user: Module, span: Span | None) -> Module:
        """The file that `use` or `extends` names: a shipped spec's name, or a path
        below the user's folder.
        """
        models = shipped()
        target = Path(path)
        if target.suffix not in SUFFIXES:
            if path in models:
                return self.module(models[path], models[path].name, span)
            # Without an ending it may be any of ours; two files of one name are settled
            # by the order of the endings.
            found = [
                f"{path}{s}" for s in SUFFIXES if (user.folder / f"{path}{s}").is_file()
            ]
            if not found:
                helps = suggest(path, models, f"shipped specs: {', '.join(models)}")
                fail("E0222", f"there is no spec called `{path}`", span, helps=helps)
            path, target = found[0], Path(found[0])
        inside = _resolved(user.folder / target, path, span)
        # links are followed first: one could lead out of the folder
        if target.is_absolute() or not inside.is_relative_to(user.folder):
            helps = [
                "put it into that folder or below it, or use a shipped spec by its name"
            ]
            fail(
                "E0803",
                f"`{path}` lies outside the folder of the spec that uses it",
                span,
                helps=helps,
            )
        return self.module(inside, path, span)

    def published(self, context: Context, entry: tree.Field, env: Env) -> Any:
        """A field's value from a published config file."""
        return published(context, entry, env)


def explanations() -> dict[str, Path]:
    """The page of every code."""
    packaged = Path(__file__).parents[1] / "_errors"
    folder = (
        packaged if packaged.is_dir() else Path(__file__).parents[2] / "docs" / "errors"
    )
    return {p.stem: p for p in sorted(folder.glob("[EW]*.md"))}
