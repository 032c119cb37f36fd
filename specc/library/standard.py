"""The standard library, read as far as a spec reaches into it.

`specs/std.json` holds the trees of `specs/std` (written by
`python -m specc.library.write_table`). A file whose text is not the one its tree was
made of is parsed, so that editing a block needs no further step; a test compares.
"""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from specc.elaborate.context import Module
from specc.elaborate.modules import module_of
from specc.files.read import Unreadable, open_regular
from specc.lang import limits, store, tree
from specc.lang.read import decode, read
from specc.text.diagnostic import fail
from specc.text.source import Source, Span

Item = tree.Block | tree.Definition


def source_of(path: Path, shown: str, span: Span | None = None) -> Source:
    """The text of a spec file. E0802 when it cannot be read."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            # one more than a spec may have is enough to refuse it (E0109)
            data = file.read(limits.TEXT + 1)
    except Unreadable as error:
        fail("E0802", f"the spec file `{shown}` cannot be read: {error.reason}", span)
    except OSError as error:
        fail(
            "E0802",
            f"the spec file `{shown}` cannot be read: {error.strerror or error}",
            span,
        )
    return decode(data, shown)


def digest(source: Source) -> str:
    """What tells a text from an edited one in the table. Not against forgery: who can
    write one can write both.
    """
    data = source.text.encode("utf-8")
    return f"{len(data)}-{zlib.crc32(data):08x}"


def sources(folder: Path) -> dict[str, Source]:
    """The texts of the standard library by file name, in order."""
    return {
        p.name: source_of(p, f"std/{p.name}")
        for p in sorted(folder.iterdir())
        if p.suffix in (".specc", ".yaml")
    }


@dataclass(eq=False)
class Standard(Mapping[str, tuple[Item, Module]]):
    """Everything std defines, by name, with the module it stands in; a file's tree is
    made when it is asked for.
    """

    folder: Path
    table: Path
    modules: dict[str, Module] = field(default_factory=dict)

    def __getitem__(self, name: str) -> tuple[Item, Module]:
        module = self._module(self._files[name])
        return module.items[name], module

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    @cached_property
    def _sources(self) -> dict[str, Source]:
        return sources(self.folder)

    @cached_property
    def _trees(self) -> dict[str, Any]:
        """The rows of the table that still hold."""
        # a checkout in which the table was deleted still works, only slower
        if not self.table.is_file():
            return {}
        data = json.loads(self.table.read_text(encoding="utf-8"))
        return {
            name: data[name]
            for name, s in self._sources.items()
            if data.get(name, {}).get("of") == digest(s)
        }

    @cached_property
    def _files(self) -> dict[str, str]:
        """Which file each name is defined in."""
        known = {
            name: self._trees[name]["names"] if name in self._trees else None
            for name in self._sources
        }
        return {
            item: name
            for name, items in known.items()
            for item in items or self._module(name).items
        }

    def _module(self, name: str) -> Module:
        if name not in self.modules:
            source = self._sources[name]
            row = self._trees.get(name)
            file = store.load(row["tree"], source) if row else read(source)
            self.modules[name] = module_of(file, f"std/{name}", standard=True)
        return self.modules[name]
