"""The standard library of blocks, loaded lazily from the JSON syntax trees in specs/std.json.

`python -m specc.library.std_library specs` generates specs/std.json.
"""

import json
import os
import sys
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from specc.diagnostics.diagnostic import Source, Span, raise_error
from specc.frontend.elaboration_context import SpecNamespace
from specc.frontend.spec_modules import build_module
from specc.io.file_type_detection import identify_file_format
from specc.io.safe_read import UnreadableFileError, open_regular_file, suggest_similar_path
from specc.syntax import ast
from specc.syntax.ast import FIELD_NAMES, NODE_CLASSES
from specc.syntax.dsl import dsl_lexer
from specc.syntax.parse import decode_spec, parse_spec

StdItem = ast.Block | ast.AttentionDef


def read_spec_source(path: Path, display_name: str, span: Span | None = None) -> Source:
    """Read a spec file. `display_name` is the file name shown in messages, and `span` is the span
    of the `use` statement that names the file. Raise E0802 if the file cannot be read, and E0222 if
    the file is a model or another known file type.
    """
    try:
        with os.fdopen(open_regular_file(path), "rb") as file:
            # reading one byte beyond the size limit suffices to detect E0109
            data = file.read(dsl_lexer.MAX_SPEC_BYTES + 1)
    except UnreadableFileError as error:
        helps = suggest_similar_path(path, lambda p: p.suffix == path.suffix, display_name)
        title = f"the spec file `{display_name}` cannot be read: {error.reason}"
        raise_error("E0802", title, span, helps=helps or ["check the path"])
    except OSError as error:
        raise_error(
            "E0802",
            f"the spec file `{display_name}` cannot be read: {error.strerror or error}",
            span,
        )
    if foreign := identify_file_format(data[:256]):
        title = f"`{display_name}` is {foreign[0]}, not a spec"
        raise_error("E0222", title, span, helps=[foreign[1]])
    return decode_spec(data, display_name)


def compute_source_digest(source: Source) -> str:
    """Return the length and the CRC-32 of a source text, to detect changes."""
    data = source.text.encode("utf-8")
    return f"{len(data)}-{zlib.crc32(data):08x}"


def read_std_sources(directory: Path) -> dict[str, Source]:
    """Return the source texts of the standard library by file name, in alphabetical order."""
    return {
        p.name: read_spec_source(p, f"std/{p.name}")
        for p in sorted(directory.iterdir())
        if p.suffix in (".specc", ".yaml")
    }


@dataclass(eq=False)
class StdLibrary(Mapping[str, tuple[StdItem, SpecNamespace]]):
    """A mapping from the names of std blocks and definitions to their modules. A std file is parsed
    when one of its names is accessed for the first time. `table_path` is the file with the
    generated syntax trees.
    """

    directory: Path
    table_path: Path
    modules: dict[str, SpecNamespace] = field(default_factory=dict)

    def __getitem__(self, name: str) -> tuple[StdItem, SpecNamespace]:
        module = self._load_module(self._files[name])
        return module.items[name], module

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    @cached_property
    def _sources(self) -> dict[str, Source]:
        return read_std_sources(self.directory)

    @cached_property
    def _trees(self) -> dict[str, Any]:
        """The serialized syntax trees of the std files whose source text has not changed."""
        # a checkout has no generated table of syntax trees, so the std files are parsed
        if not self.table_path.is_file():
            return {}
        data = json.loads(self.table_path.read_text(encoding="utf-8"))
        return {
            name: data[name]
            for name, s in self._sources.items()
            if data.get(name, {}).get("digest") == compute_source_digest(s)
        }

    @cached_property
    def _files(self) -> dict[str, str]:
        """A mapping from each std name to the name of the file that defines it."""
        names_by_file = {
            name: self._trees[name]["names"] if name in self._trees else None
            for name in self._sources
        }
        return {
            item: name
            for name, items in names_by_file.items()
            for item in items or self._load_module(name).items
        }

    def _load_module(self, name: str) -> SpecNamespace:
        """Return the module of the std file `name`. An unchanged file is taken from the table."""
        if name not in self.modules:
            source = self._sources[name]
            entry = self._trees.get(name)
            file = (
                deserialize_syntax_tree(json.loads(entry["tree"]), source)
                if entry
                else parse_spec(source)
            )
            self.modules[name] = build_module(file, f"std/{name}", is_standard=True)
        return self.modules[name]


TREE_FORMAT_VERSION = 1
CLASSES_BY_NAME = {c.__name__: c for c in NODE_CLASSES}


def serialize_syntax_tree(file: ast.File) -> dict[str, Any]:
    """Convert a syntax tree to JSON data. `nodes[n]` is `[class, value, …]`, where each value is a
    JSON scalar, a child node `{"n": node}`, a span `{"s": [start, end]}` or a tuple `{"t": [value,
    …]}`.
    """
    nodes: list[list[Any]] = []
    node_numbers: dict[int, int] = {}
    stack: list[tuple[Any, bool]] = [(file, False)]
    # use a loop instead of recursion, because the syntax tree of a long text can be deep
    while stack:
        node, is_visited = stack.pop()
        # a node such as the shared empty `Comments` may have several parents
        if id(node) in node_numbers:
            continue
        # values are in the field order of the class; a table with another order is rejected
        values = [getattr(node, name) for name in FIELD_NAMES[type(node)]]
        if is_visited:
            node_numbers[id(node)] = len(nodes)
            nodes.append(
                [type(node).__name__, *(encode_node_field(v, node_numbers) for v in values)]
            )
            continue
        # write child nodes before the parent node
        stack.append((node, True))
        stack.extend((child, False) for child in _list_child_nodes(values))
    classes = sorted({row[0] for row in nodes})
    return {
        "version": TREE_FORMAT_VERSION,
        "fields": {c: list(FIELD_NAMES[CLASSES_BY_NAME[c]]) for c in classes},
        "nodes": nodes,
    }


def _list_child_nodes(values: Iterable[object]) -> list[object]:
    """Return the child nodes that the field values of a node contain."""
    parts = (p for v in values for p in (v if isinstance(v, tuple) else (v,)))
    return [part for part in parts if isinstance(part, NODE_CLASSES)]


def encode_node_field(value: Any, node_numbers: dict[int, int]) -> Any:
    """Encode the value of a node field as JSON data."""
    if isinstance(value, NODE_CLASSES):
        return {"n": node_numbers[id(value)]}
    if isinstance(value, Span):
        return {"s": [value.start, value.end]}
    if isinstance(value, tuple):
        return {"t": [encode_node_field(v, node_numbers) for v in value]}
    assert value is None or isinstance(value, str | int | bool)
    return value


def deserialize_syntax_tree(data: dict[str, Any], source: Source) -> ast.File:
    """Rebuild a syntax tree from the JSON data of `serialize_syntax_tree`. `source` is the source
    text.
    """
    assert data["version"] == TREE_FORMAT_VERSION, "the table has a different version"
    for name, field_names in data["fields"].items():
        assert tuple(field_names) == FIELD_NAMES[CLASSES_BY_NAME[name]], (
            f"{name} has different fields in this version"
        )
    nodes: list[Any] = []
    for name, *values in data["nodes"]:
        node_class = CLASSES_BY_NAME[name]
        field_values = (decode_node_field(v, nodes, source) for v in values)
        nodes.append(node_class(**dict(zip(FIELD_NAMES[node_class], field_values, strict=True))))
    file = nodes[-1]
    assert isinstance(file, ast.File)
    return file


def decode_node_field(value: Any, nodes: list[Any], source: Source) -> Any:
    """Decode the value of a node field from JSON data."""
    if not isinstance(value, dict):
        return value
    if "n" in value:
        return nodes[value["n"]]
    if "s" in value:
        start, end = value["s"]
        assert 0 <= start <= end <= len(source.text)
        return Span(source, start, end)
    return tuple(decode_node_field(v, nodes, source) for v in value["t"])


def serialize_std_library(directory: Path) -> str:
    """Render the JSON table of a specs directory: each std file's digest, names and syntax tree."""
    rows = []
    for name, source in read_std_sources(directory).items():
        file = parse_spec(source)
        row = {
            "digest": compute_source_digest(source),
            "names": list(build_module(file, name).items),
            # the tree is a JSON string, so that only the syntax trees of accessed files are decoded
            "tree": json.dumps(
                serialize_syntax_tree(file), ensure_ascii=False, separators=(",", ":")
            ),
        }
        rows.append(
            f"{json.dumps(name)}:{json.dumps(row, ensure_ascii=False, separators=(',', ':'))}"
        )
    return "{" + ",\n".join(rows) + "}\n"


if __name__ == "__main__":
    specs = Path(sys.argv[1])
    (specs / "std.json").write_text(serialize_std_library(specs / "std"), encoding="utf-8")
