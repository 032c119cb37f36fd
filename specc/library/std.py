"""The standard library of blocks, loaded lazily from the precomputed table specs/std.json."""

import json
import os
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.source import Source, Span
from specc.frontend.context import SpecModule
from specc.frontend.spec_modules import build_module
from specc.io.safe_read import UnreadableFile, open_regular_file
from specc.syntax import ast, ast_json, source_limits
from specc.syntax.parse import decode_spec, parse_spec

StdItem = ast.Block | ast.Definition


def read_spec_source(path: Path, shown: str, span: Span | None = None) -> Source:
    """The text of a spec file. E0802 when it cannot be read."""
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            # one more than a spec may have is enough to refuse it (E0109)
            data = file.read(source_limits.MAX_SPEC_BYTES + 1)
    except UnreadableFile as error:
        raise_error("E0802", f"the spec file `{shown}` cannot be read: {error.reason}", span)
    except OSError as error:
        raise_error(
            "E0802", f"the spec file `{shown}` cannot be read: {error.strerror or error}", span
        )
    return decode_spec(data, shown)


def compute_source_digest(source: Source) -> str:
    """What tells a text from an edited one in the table. Not against forgery: who can
    write one can write both.
    """
    data = source.text.encode("utf-8")
    return f"{len(data)}-{zlib.crc32(data):08x}"


def read_std_sources(folder: Path) -> dict[str, Source]:
    """The texts of the standard library by file name, in order."""
    return {
        p.name: read_spec_source(p, f"std/{p.name}")
        for p in sorted(folder.iterdir())
        if p.suffix in (".specc", ".yaml")
    }


@dataclass(eq=False)
class StdLibrary(Mapping[str, tuple[StdItem, SpecModule]]):
    """Everything std defines, by name, with the module it stands in; a file's tree is
    made when it is asked for.
    """

    folder: Path
    table: Path
    modules: dict[str, SpecModule] = field(default_factory=dict)

    def __getitem__(self, name: str) -> tuple[StdItem, SpecModule]:
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
        return read_std_sources(self.folder)

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
            if data.get(name, {}).get("of") == compute_source_digest(s)
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

    def _module(self, name: str) -> SpecModule:
        if name not in self.modules:
            source = self._sources[name]
            row = self._trees.get(name)
            file = ast_json.tree_from_json(row["tree"], source) if row else parse_spec(source)
            self.modules[name] = build_module(file, f"std/{name}", standard=True)
        return self.modules[name]
