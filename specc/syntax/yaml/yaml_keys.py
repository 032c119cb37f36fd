"""The YAML keys of statements, weight rules, `use`, blocks and definitions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from specc.diagnostics.diagnostic import Span
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.syntax import ast
from specc.syntax.ast import MISSING_TYPE
from specc.syntax.comments import attach_opening_comment
from specc.syntax.dsl.dsl_parser import TARGETS, TYPES
from specc.syntax.dsl.expression_printer import format_inline_type
from specc.syntax.yaml import yaml_validation
from specc.syntax.yaml.yaml_composer import YamlEntry, YamlMapping, YamlNode
from specc.syntax.yaml.yaml_emitter import (
    YamlItem,
    YamlMap,
    YamlPair,
    YamlValue,
    expression_to_yaml,
    make_multiline_list,
)
from specc.syntax.yaml.yaml_validation import FOREIGN_STATEMENT_HINTS, YamlReader
from specc.syntax.yaml.yaml_values import (
    ARCHITECTURES,
    BLOCK_NAME,
    EQUATIONS,
    EXPRESSION,
    EXPRESSIONS,
    FILE,
    FILES,
    FLAG,
    INPUTS,
    NAME,
    NAMES,
    OUTPUTS,
    REPEAT_OVER,
    SCAN_OVER,
    SIGNATURE,
    TEXT,
    TEXTS,
    WEIGHT_NAME,
    WEIGHT_NAMES,
    FieldValues,
    YamlValueCodec,
    parse_yaml_expression,
    parse_yaml_fragment,
)

T = TypeVar("T", bound=ast.Node, covariant=True)

Statements = tuple[tuple[ast.Statement, ...], tuple[str, ...]]
"""A list of statements, and the comments after the last statement."""


@immutable_dataclass
class KeySchema:
    """A key of a YAML map. The key's value sets the fields `fields` of the syntax tree node.
    `description` is the value's name in messages.
    """

    name: str
    codec: YamlValueCodec
    fields: str = ""
    description: str = ""

    @property
    def field_names(self) -> list[str]:
        """The node fields that the key sets. If `fields` is empty, the key sets the field with the
        same name.
        """
        return (self.fields or self.name).split()


class MappingSchema(Generic[T]):
    """The schema of the YAML map of a statement or item. `node_class` is the class of the syntax
    tree node, and the first of the `keys` is the keyword.

    `required` are the required keys. If `is_multiline` is True, each key is printed on its own
    line. `description` is the name of the statement or item in messages. `constants` are the values
    of node fields that no key sets.
    """

    def __init__(
        self,
        node_class: type[T],
        keys: Iterable[KeySchema],
        required: str = "",
        /,
        *,
        description: str = "",
        is_multiline: bool = True,
        **constants: object,
    ) -> None:
        self.node_class: Callable[..., T] = node_class
        self.keys = tuple(keys)
        self.required = tuple(required.split())
        self.description = description or f"`{self.keys[0].name}`"
        self.is_multiline = is_multiline
        self.constants: Mapping[str, object] = constants
        self.has_body = any(key.name == "do" for key in self.keys)

    @property
    def key_names(self) -> tuple[str, ...]:
        """The names of the map's keys."""
        return tuple(key.name for key in self.keys)

    def parse(self, reader: YamlReader, node: YamlNode) -> T | None:
        """Parse a YAML map to a syntax tree node, or return None after an error."""
        entries = reader.read_entries_by_key(node, self.key_names, self.description, self.required)
        if not entries.keys() >= set(self.required):
            return None
        values: dict[str, object] = dict(self.constants)
        is_complete = True
        for key in self.keys:
            if key.name in entries:
                value = key.codec.parse(
                    reader, entries[key.name], key.description or f"`{key.name}`"
                )
                fields = key.field_names
                is_complete &= value is not None
                if isinstance(value, FieldValues):
                    values |= zip(fields, value, strict=True)
                else:
                    values[fields[0]] = value
        if not is_complete:
            return None
        span = (
            yaml_validation.compute_node_span_with_comments(reader, node)
            if self.has_body
            else node.span
        )
        return self.node_class(**values, span=span)

    def to_yaml(self, node: ast.Node) -> YamlMap:
        """Convert a syntax tree node to a YAML map."""
        entries = (
            (key.name, key.codec.to_yaml(*(getattr(node, name) for name in key.field_names)))
            for key in self.keys
        )
        return YamlMap(
            [YamlPair(n, value) for n, value in entries if value is not None],
            is_multiline=self.is_multiline,
        )


def find_node_schema(schemas: Mapping[str, MappingSchema[T]], node: ast.Node) -> MappingSchema[T]:
    """Return the schema for the class of `node`."""
    return next(schema for schema in schemas.values() if schema.node_class is type(node))


def parse_yaml_statements(reader: YamlReader, entry: YamlEntry) -> Statements:
    """Parse the list of statements below the key `do`."""
    example = "a list of statements: `- x: f(y)`"
    nodes = reader.read_sequence(entry.value, f"`{entry.key}`", example)
    statements = [s for n in nodes if (s := parse_yaml_statement(reader, n)) is not None]
    body = yaml_validation.collect_yaml_body(reader, entry, statements)
    return attach_opening_comment(body)


def parse_yaml_statement(reader: YamlReader, node: YamlNode) -> ast.Statement | None:
    """Parse one statement, or return None after an error."""
    if not isinstance(node, YamlMapping) or not node.entries:
        reader.report_wrong_kind(node, "a statement", "a map", "`- x: f(y)`")
        return None
    keys = [e.key for e in node.entries]
    keyword = next((name for name in keys if name in STATEMENT_SCHEMAS), None)
    if keyword is not None:
        return STATEMENT_SCHEMAS[keyword].parse(reader, node)
    if "until" not in keys:
        return parse_yaml_assignment(reader, node)
    _report_unbounded_loop(reader, node.entries[keys.index("until")].key_node.span)
    return None


def _report_unbounded_loop(reader: YamlReader, span: Span) -> None:
    """Report E0728 for a loop that has `until` but no maximum number of iterations."""
    label = "the maximum number of iterations is missing"
    fix = "add the maximum: `- scan: step in 8`, and `until` below it"
    reader.report_error("E0728", "this loop has no bound", span, label, fix)


def parse_yaml_assignment(reader: YamlReader, node: YamlMapping) -> ast.Assignment | None:
    """Parse an assignment: `x: f(y)`, `a, b: f(y)` or `x: {type: float[b], is: f(y)}`."""
    if len(node.entries) > 1:
        report_extra_key(reader, node.entries)
        return None
    entry = node.entries[0]
    subject = "the name of a result"
    targets = parse_yaml_fragment(reader, entry.key_node, TARGETS, subject) or (
        ast.AssignmentTarget("_"),
    )
    value = entry.value
    if isinstance(value, YamlMapping) and {e.key for e in value.entries} == {"type", "is"}:
        parts = {e.key: e.value for e in value.entries}
        targets = annotate_target_types(reader, targets, parts["type"])
        value = parts["is"]
    return ast.Assignment(targets, parse_yaml_expression(reader, value), span=node.span)


def report_extra_key(reader: YamlReader, entries: list[YamlEntry]) -> None:
    """Report E0125 for a statement with two keys, i.e. a misspelled keyword or two statements."""
    entry = next((e for e in entries if find_similar_name(e.key, STATEMENT_SCHEMAS)), entries[1])
    similar_name = find_similar_name(entry.key, STATEMENT_SCHEMAS)
    reader.report_error(
        "E0125",
        "a statement must bind a single value",
        entry.key_node.span,
        "a second key",
        FOREIGN_STATEMENT_HINTS.get(entries[0].key)
        or (format_suggestion(similar_name) if similar_name else "start a new statement with `- `"),
    )


def annotate_target_types(
    reader: YamlReader, targets: tuple[ast.AssignmentTarget, ...], node: YamlNode
) -> tuple[ast.AssignmentTarget, ...]:
    """Attach the types in `node`, such as `float[b], _`, to `targets`. `_` means no type. Report
    E0120 if the numbers of types and targets differ.
    """
    types = parse_yaml_fragment(reader, node, TYPES, "types") or (MISSING_TYPE,) * len(targets)
    if len(types) != len(targets):
        reader.report_error(
            "E0120",
            f"{len(targets)} names, but {len(types)} types",
            node.span,
            "the numbers must be equal",
            "write one type per name, or `_` for none",
        )
        return targets
    return tuple(
        replace(target, type=None if kind == MISSING_TYPE else kind)
        for target, kind in zip(targets, types, strict=True)
    )


def assignment_to_yaml(node: ast.Assignment) -> YamlMap:
    """Convert an assignment to `a: f(x)`, or with a type to `a: {type: …, is: f(x)}`."""
    name = ", ".join(t.name for t in node.targets)
    value = expression_to_yaml(node.value)
    if all(t.type is None for t in node.targets):
        return YamlMap([YamlPair(name, value)])
    types = ", ".join("_" if t.type is None else format_inline_type(t.type) for t in node.targets)
    return YamlMap([YamlPair(name, YamlMap([YamlPair("type", types), YamlPair("is", value)]))])


def statement_to_yaml(node: ast.Statement) -> YamlItem:
    """Convert one statement to a YAML list item."""
    if isinstance(node, ast.Assignment):
        return YamlItem(assignment_to_yaml(node), node.comments)
    schema = find_node_schema(STATEMENT_SCHEMAS, node)
    return YamlItem(schema.to_yaml(node), node.comments, is_comment_on_first_line=schema.has_body)


def body_to_yaml(statements: Sequence[ast.Statement], end_comments: tuple[str, ...]) -> YamlValue:
    """Convert statements to the YAML list below the key `do`."""
    return make_multiline_list([statement_to_yaml(s) for s in statements], end_comments)


BODY_CODEC = YamlValueCodec(lambda r, e, _: FieldValues(parse_yaml_statements(r, e)), body_to_yaml)
ELSE_CODEC = YamlValueCodec(
    BODY_CODEC.parse, lambda body, end: body_to_yaml(body, end) if body or end else None
)
DOC, DO = KeySchema("doc", TEXT), KeySchema("do", BODY_CODEC, "body end_comments")
REQUIRE_SCHEMA = MappingSchema(
    ast.RequireStatement,
    [KeySchema("require", EXPRESSION, "condition"), KeySchema("because", TEXT)],
)
STATEMENT_SCHEMAS: Mapping[str, MappingSchema[ast.Statement]] = {
    "repeat": MappingSchema(
        ast.RepeatLoop,
        [
            KeySchema("repeat", REPEAT_OVER, "variable iterable"),
            KeySchema("under", WEIGHT_NAME),
            KeySchema("collect", NAMES),
            DO,
        ],
        "do",
    ),
    "scan": MappingSchema(
        ast.ScanLoop,
        [
            KeySchema("scan", SCAN_OVER, "variables sequences"),
            KeySchema("along", EXPRESSION),
            KeySchema("carry", NAMES),
            KeySchema("collect", NAMES),
            KeySchema("reverse", FLAG),
            KeySchema("keep", EXPRESSION),
            KeySchema("until", EXPRESSION),
            DO,
        ],
        "do",
    ),
    "when": MappingSchema(
        ast.WhenStatement,
        [
            KeySchema("when", EXPRESSION, "condition"),
            DO,
            KeySchema("else", ELSE_CODEC, "otherwise else_end_comments"),
        ],
        "do",
    ),
    "return": MappingSchema(ast.ReturnStatement, [KeySchema("return", EXPRESSIONS, "values")]),
    "require": REQUIRE_SCHEMA,
}
"""The schemas of statements that begin with a keyword. All other statements are assignments."""

CONDITION_KEY = KeySchema("when", EXPRESSION, "condition")
TIE_SOURCE_KEY, LOAD_VALUE_KEY = (
    KeySchema("to", WEIGHT_NAME, "source"),
    KeySchema("as", EXPRESSION, "value"),
)
WEIGHT_RULE_SCHEMAS: Mapping[str, MappingSchema[ast.WeightRule]] = {
    "from": MappingSchema(ast.WeightsFile, [KeySchema("from", FILE, "path")], is_multiline=False),
    "tie": MappingSchema(
        ast.WeightTyingRule,
        [KeySchema("tie", WEIGHT_NAME, "name"), TIE_SOURCE_KEY, CONDITION_KEY],
        "to",
        is_multiline=False,
    ),
    "load": MappingSchema(
        ast.LoadRule,
        [KeySchema("load", WEIGHT_NAME, "name"), LOAD_VALUE_KEY, CONDITION_KEY],
        "as",
        is_multiline=False,
    ),
    "ignore": MappingSchema(
        ast.IgnoreRule,
        [KeySchema("ignore", WEIGHT_NAMES, "names"), CONDITION_KEY],
        is_multiline=False,
    ),
    "share": MappingSchema(
        ast.WeightSharingRule,
        [KeySchema("share", WEIGHT_NAME, "name"), CONDITION_KEY],
        is_multiline=False,
    ),
}

USE_KEYS = (
    KeySchema("as", NAME, "name"),
    KeySchema("from", TEXTS, "sources", "the key"),
    KeySchema("under", WEIGHT_NAME),
)
SIGNATURE_KEYS = (DOC, KeySchema("in", INPUTS, "params"), KeySchema("out", OUTPUTS, "results"))
GRAPH_KEYS = (KeySchema("where", EQUATIONS), KeySchema("for", ARCHITECTURES, "architectures"))
ITEM_SCHEMAS: Mapping[str, MappingSchema[ast.Item]] = {
    "block": MappingSchema(
        ast.Block,
        [KeySchema("block", BLOCK_NAME, "name name_span"), *SIGNATURE_KEYS, DO],
        "out do",
        kind="block",
    ),
    "graph": MappingSchema(
        ast.Block,
        [KeySchema("graph", BLOCK_NAME, "name name_span"), *SIGNATURE_KEYS, *GRAPH_KEYS, DO],
        "out do",
        kind="graph",
    ),
    **{
        kind: MappingSchema(
            ast.AttentionDef,
            [
                KeySchema(kind, SIGNATURE, "name params name_span"),
                KeySchema("doc", TEXT),
                KeySchema("is", EXPRESSION, "value"),
            ],
            "is",
            kind=kind,
        )
        for kind in ast.DEFINITION_KINDS
    },
    "use": MappingSchema(
        ast.UseStatement,
        [KeySchema("use", FILES, "paths", "the file"), *USE_KEYS],
        "as",
        is_multiline=False,
    ),
    "require": REQUIRE_SCHEMA,
}
"""The schemas of `items:` entries with several keys, keyed by keyword."""

USE_ENTRY = MappingSchema(
    ast.UseStatement,
    [KeySchema("file", FILES, "paths", "the file"), *USE_KEYS],
    "file as",
    description="`use`",
    is_multiline=False,
)
REQUIRE_ENTRY = MappingSchema(
    ast.RequireStatement,
    [KeySchema("that", EXPRESSION, "condition"), KeySchema("because", TEXT)],
    "that",
    description="`require`",
    is_multiline=False,
)
"""The schema of an entry of the top-level list `require:`."""
