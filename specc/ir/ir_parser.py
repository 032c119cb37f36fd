"""Parse graphs from the textual IR.

The text is untrusted, so the parser limits its size and nesting, and executes nothing. The parser
builds only known ops with attributes of the declared types, and checks all nodes with shape rules.
The parser raises E0927 if the version or the size is not supported, and E0928 if a line is invalid.
"""

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, fields
from types import UnionType
from typing import Literal, get_args, get_origin

import specc.ir.ops  # noqa: F401  (fills the table of ops)
from specc.diagnostics.diagnostic import Source, Span, raise_error
from specc.ir.dim import MAX_DIM_INTEGER, Dim, DimError
from specc.ir.graph import Graph, GraphBuilder, Input, Node, NodeOrigin, Parameter, Value
from specc.ir.ir_printer_and_lexer import (
    DIM_PATTERN,
    IR_HEADER,
    KEYWORD_PATTERN,
    NAME_PATTERN,
    REST_OF_LINE_PATTERN,
    TYPE_PATTERN,
    VALUE_PATTERN,
    IrLexer,
)
from specc.ir.op import OPS_BY_NAME, Op
from specc.ir.types import ShapeError, Type

MAX_IR_TEXT_LENGTH = 64 * 2**20
MAX_IR_NODES = 200_000
MAX_BODY_NESTING = 8

OP_BUILD_ERRORS = (
    ShapeError, DimError, AssertionError, LookupError, TypeError, ValueError, ArithmeticError,
)  # fmt: skip
"""The exceptions that ops raise for invalid attributes or operands in untrusted text."""


def parse_ir(text: str, name: str = "<ir>") -> dict[str, Graph]:
    """Parse textual IR to graphs, keyed by name. `name` is the text's name in messages."""
    if len(text) > MAX_IR_TEXT_LENGTH:
        raise_error("E0927", f"`{name}` has more than {MAX_IR_TEXT_LENGTH >> 20} MiB of textual IR")
    lines = IrLexer(Source(name, text))
    if lines.line != IR_HEADER:
        raise_error(
            "E0927",
            f"`{name}` is not textual IR of this version of specc",
            notes=[f"its first line must be `{IR_HEADER}`"],
            helps=["compile the model again with this version of specc"],
        )
    lines.column = len(IR_HEADER)
    lines.advance_line()
    graphs: dict[str, Graph] = {}
    while lines.line:
        graph = _GraphParser(lines, 0).parse_graph()
        if graph.name in graphs:
            lines.raise_syntax_error(f"two graphs have the name `{graph.name}`")
        graphs[graph.name] = graph
    if lines.offset != len(text):
        lines.raise_syntax_error("unexpected text after an empty line")
    return graphs


@dataclass
class _GraphParser:
    """A parser of one graph of the textual IR, from the `graph` line to the `end` line."""

    lines: IrLexer
    depth: int

    def __post_init__(self) -> None:
        self.b = GraphBuilder()
        self.values: list[Value] = []
        self.outputs: dict[str, Value] = {}
        self.min_lengths: dict[str, int] = {}
        self.length_equations: dict[str, Dim] = {}

    def parse_graph(self) -> Graph:
        """Parse the graph, whose lines have the same order as in the output of `format_ir`."""
        lines = self.lines
        # limit the nesting, because loop bodies are parsed recursively
        if self.depth > MAX_BODY_NESTING:
            lines.raise_syntax_error(f"bodies are nested more than {MAX_BODY_NESTING} levels deep")
        lines.expect_word("graph ")
        name = lines.read_string()
        lines.advance_line()
        # number values in the order of the printer: printing the parsed graph reproduces the text
        for word, read_line in (
            ("least ", self.read_min_length),
            ("fact ", self.read_length_equation),
            ("input ", self.read_input),
            ("parameter ", self.read_parameter),
        ):
            while lines.take_word(word):
                read_line()
                lines.advance_line()
        while lines.is_next_word("%"):
            self.read_node()
        for word, table in (("name ", self.b.names), ("output ", self.outputs)):
            while lines.take_word(word):
                name_text = self.read_unique_name(table)
                lines.expect_word(" ")
                table[name_text] = self.read_defined_value()
                lines.advance_line()
        lines.expect_word("end")
        lines.advance_line()
        b = self.b
        return Graph(
            name=name,
            inputs=b.inputs,
            input_facts=b.input_facts,
            parameters=b.parameters,
            parameter_facts=b.parameter_facts,
            nodes=tuple(b.nodes.items()),
            outputs=self.outputs,
            names=b.names,
            node_origins=b.node_origins,
            min_lengths=self.min_lengths,
            length_equations=self.length_equations,
        )

    def read_min_length(self) -> None:
        """Parse the lower bound of a symbolic dimension, as in `least seq 1`."""
        name = self.lines.expect_pattern(NAME_PATTERN, "a name").group()
        self.lines.expect_word(" ")
        bound = self.lines.read_number()
        if isinstance(bound, float) or name in self.min_lengths:
            self.lines.raise_syntax_error(f"expected one integer for `{name}`")
        self.min_lengths[name] = bound

    def read_length_equation(self) -> None:
        """Parse an equation of a symbolic dimension, as in `fact size = 4*half`."""
        name = self.lines.expect_pattern(NAME_PATTERN, "a name").group()
        self.lines.expect_word(" = ")
        if name in self.length_equations:
            self.lines.raise_syntax_error(f"`{name}` is duplicated")
        self.length_equations[name] = self.parse_length()

    def parse_length(self) -> Dim:
        """Parse a dimension up to the end of the line."""
        return self.lines.parse_dim(
            self.lines.expect_pattern(REST_OF_LINE_PATTERN, "a length").group()
        )

    def read_input(self) -> None:
        """Parse an input, such as `input "ids" %0: i64[batch, seq] below=vocab`."""
        lines = self.lines
        name = self.read_unique_name(self.b.inputs)
        lines.expect_word(" ")
        type = self.parse_definition()
        padding_side = lines.read_string() if lines.take_word(" keep=") else ""
        upper_bound = self.parse_length() if lines.take_word(" below=") else None
        match padding_side:
            case "" | "left" | "right" | "any":
                self.values.append(self.b.add_input(name, Input(type, padding_side, upper_bound)))
            case _:
                lines.raise_syntax_error(f"`{padding_side}` is not a padding side")

    def read_parameter(self) -> None:
        """Parse a parameter, such as `parameter "bias" %1: f32[768] initial="zeros" made_by=""`."""
        lines = self.lines
        name = self.read_unique_name(self.b.parameters)
        lines.expect_word(" ")
        type = self.parse_definition()
        lines.expect_word(" initial=")
        initial = lines.read_string()
        lines.expect_word(" made_by=")
        facts = Parameter(
            name=name, type=type, initializer=initial, declared_by=lines.read_string()
        )
        self.values.append(self.b.add_parameter(facts))

    def read_node(self) -> None:
        """Parse a node, such as `%2: f32[n] = add(%0, %1) {…} @ "scope"`, and its loop body."""
        lines = self.lines
        lines.node_count += 1
        if lines.node_count > MAX_IR_NODES:
            lines.raise_syntax_error(f"more than {MAX_IR_NODES} nodes")
        span = lines.get_remaining_span()
        recorded_types = [self.parse_result(0)]
        while lines.take_word(", "):
            recorded_types.append(self.parse_result(len(recorded_types)))
        lines.expect_word(" = ")
        node, types, scopes = self.parse_node(span)
        # compare the type in the text with the inferred type, to detect corrupted lines
        if [str(t) for t in types] != recorded_types:
            inferred_text = ", ".join(map(str, types))
            lines.raise_syntax_error(f"{node.op.name} returns {inferred_text}", span)
        # the builder merges equal nodes, so a duplicate node is an error
        if node in self.b.nodes:
            lines.raise_syntax_error("duplicate node", span)
        self.b.nodes[node] = tuple(Value(t, node, n) for n, t in enumerate(types))
        self.values += self.b.nodes[node]
        if scopes:
            self.b.node_origins[node] = NodeOrigin(scopes)

    def parse_node(self, span: Span) -> tuple[Node, tuple[Type, ...], tuple[str, ...]]:
        """Parse a node's line after `=`. Return the node, its result types and its scopes."""
        lines = self.lines
        name = lines.expect_pattern(KEYWORD_PATTERN, "the name of an op").group()
        args = self.parse_arguments()
        attributes = self.parse_attributes() if lines.take_word(" {") else {}
        scopes = self.parse_scopes() if lines.take_word(" @ ") else ()
        has_body = lines.take_word(" body")
        lines.advance_line()
        body = _GraphParser(lines, self.depth + 1).parse_graph() if has_body else None
        try:
            node = Node(build_op(name, attributes, body), args)
            types = node.op.infer_result_types(*(a.type if a else None for a in args))
        except OP_BUILD_ERRORS as error:
            reason = f"{name}: {error}"
            default_reason = f"`{name}` has invalid attributes or operands"
            lines.raise_syntax_error(reason if str(error) else default_reason, span)
        return node, types, scopes

    def read_unique_name(self, values_by_name: dict[str, Value]) -> str:
        """Read a quoted name that is not in `values_by_name`."""
        name = self.lines.read_string()
        if name in values_by_name:
            self.lines.raise_syntax_error(f"duplicate `{name}`")
        return name

    def parse_definition(self) -> Type:
        """Parse the index and type of an input or parameter, as in `%4: f32[n]`."""
        self.expect_number(len(self.values))
        return self.lines.read_type()

    def parse_result(self, n: int) -> str:
        """Parse the index and type of result `n` of a node. Return the text of the type."""
        self.expect_number(len(self.values) + n)
        return self.lines.expect_pattern(TYPE_PATTERN, "a type").group()

    def expect_number(self, expected: int) -> None:
        """Parse a value index and a colon, as in `%4: `. Raise E0928 for a different index."""
        if int(self.lines.expect_pattern(VALUE_PATTERN, "a value").group(1)) != expected:
            self.lines.raise_syntax_error(f"expected the value %{expected}")
        self.lines.expect_word(": ")

    def read_defined_value(self) -> Value:
        """Parse a reference to a value, as in `%3`. Raise E0928 if the value is not yet defined."""
        number = int(self.lines.expect_pattern(VALUE_PATTERN, "a value").group(1))
        if number >= len(self.values):
            self.lines.raise_syntax_error(f"%{number} is used before it is defined")
        return self.values[number]

    def parse_arguments(self) -> tuple[Value | None, ...]:
        """Parse operands, such as `(%0, _, %3)`."""
        self.lines.expect_word("(")
        return tuple(
            None if self.lines.take_word("_") else self.read_defined_value()
            for _ in self.iterate_items()
        )

    def iterate_items(self) -> Iterator[None]:
        """Yield once before each item of a list, up to the closing parenthesis."""
        separator = ""
        while not self.lines.take_word(")"):
            self.lines.expect_word(separator)
            separator = ", "
            yield

    def parse_attributes(self) -> dict[str, object]:
        """Parse the attributes of an op up to the closing brace, as in `axis=1, fn="sum"}`."""
        attributes: dict[str, object] = {}
        while True:
            name = self.lines.expect_pattern(KEYWORD_PATTERN, "the name of an attribute").group()
            self.lines.expect_word("=")
            if name in attributes:
                self.lines.raise_syntax_error(f"duplicate `{name}`")
            attributes[name] = self.parse_attribute(0)
            if self.lines.take_word("}"):
                return attributes
            self.lines.expect_word(", ")

    def parse_attribute(self, depth: int) -> object:
        """Parse an attribute value: a number, a string, `true`, `false`, a dimension `<dim>`, or a
        tuple of these values. Tuples cannot be nested: `depth` is 1 inside a tuple.
        """
        lines = self.lines
        if lines.take_word("true"):
            return True
        if lines.take_word("false"):
            return False
        if lines.is_next_word('"'):
            return lines.read_string()
        if lines.is_next_word("<"):
            return lines.parse_dim(lines.expect_pattern(DIM_PATTERN, "a length").group(1))
        if depth or not lines.take_word("("):
            return lines.read_number()
        return tuple(self.parse_attribute(depth + 1) for _ in self.iterate_items())

    def parse_scopes(self) -> tuple[str, ...]:
        """Parse the scope paths of a node, such as `"layers.0", "layers.1"`."""
        scopes = [self.lines.read_string()]
        while self.lines.take_word(", "):
            scopes.append(self.lines.read_string())
        return tuple(scopes)


EXACT_TYPE_PAIRS = {(t, t) for t in (float, bool, str, Dim)}


def build_op(name: str, attributes: dict[str, object], body: Graph | None = None) -> Op:
    """Build the op `name`. Raise ShapeError for an unknown op or an invalid attribute."""
    op_class = OPS_BY_NAME.get(name)
    if op_class is None:
        raise ShapeError("unknown op")
    op_fields = {f.name: f for f in fields(op_class)}  # type: ignore[arg-type]  # every op is a dataclass
    op_attributes = attributes if body is None else {**attributes, "body": body}
    for field in op_fields.values():
        _check_attribute(field, op_attributes)
    for attribute in op_attributes:
        if attribute not in op_fields:
            raise ShapeError(f"unknown attribute `{attribute}`")
    return op_class(**op_attributes)


def _check_attribute(field: Field[object], attributes: Mapping[str, object]) -> None:
    """Raise ShapeError if an attribute is missing or has the wrong type."""
    if field.name not in attributes:
        # a text in an older format may lack attributes that were added later
        if field.default is MISSING:
            raise ShapeError(f"the attribute `{field.name}` is missing")
    elif not _has_type(attributes[field.name], field.type):
        raise ShapeError(f"the attribute `{field.name}` cannot be {attributes[field.name]!r:.40}")


def _has_type(value: object, type: object) -> bool:
    """Return True if a value has an annotated type such as `int`, `Dim` or `tuple[float, ...]`."""
    if type == "Graph":
        return isinstance(value, Graph)
    if isinstance(type, UnionType):
        return any(_has_type(value, t) for t in get_args(type))
    if get_origin(type) is Literal:
        return isinstance(value, str) and value in get_args(type)
    if get_origin(type) is tuple:
        item_type = get_args(type)[0]
        return isinstance(value, tuple) and all(_has_type(v, item_type) for v in value)
    if type is int:
        return _is_dim_integer(value)
    # the type must match exactly: `true` is not an int, and 1 is not a float
    return (value.__class__, type) in EXACT_TYPE_PAIRS


def _is_dim_integer(value: object) -> bool:
    """Return True for an int (not a bool) with an absolute value below MAX_DIM_INTEGER."""
    if not isinstance(value, int) or isinstance(value, bool):
        return False
    return abs(value) < MAX_DIM_INTEGER
