"""The textual IR: the printer of graphs with one node per line, and the lexer of the parser.

    specc-ir 1
    graph "main"
    input "x" %0: f32[batch, seq, 768]
    parameter "norm.weight" %1: f32[768] initial="ones" made_by=""
    %2: f32[batch, seq, 768] = rms_norm(%0, %1) {eps=1e-06} @ "layers.0"
    output "y" %2
    end

Values are numbered in the order of their definition. An absent operand is `_`. The line of a `scan`
node ends with `body`. The lines of the loop body follow, and number their values separately.
`specc.ir.ir_parser` parses the text.

The textual IR contains no source positions of specs. The parser validates the text and raises E0928
at the location of an error.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import NoReturn

from specc.diagnostics.diagnostic import Source, Span, raise_error
from specc.ir.dim import DIM_FUNCTIONS, MAX_DIM_INTEGER, Dim, DimError
from specc.ir.graph import Graph, Input, Node, NodeOrigin, Value
from specc.ir.types import ALL_DTYPES, Type

IR_HEADER = "specc-ir 1"


def format_ir(*graphs: Graph) -> str:
    """Format graphs with unique names as textual IR, deterministically."""
    assert len({g.name for g in graphs}) == len(graphs), "two graphs of one text have the same name"
    lines = [IR_HEADER]
    for graph in graphs:
        lines += _format_graph(graph, 0)
    return "\n".join(lines) + "\n"


def quote_string(text: str) -> str:
    """Quote a string in ASCII, with JSON escapes."""
    return json.dumps(text)


def _format_graph(graph: Graph, depth: int) -> Iterator[str]:
    """Yield the lines of a graph, indented by `depth` levels."""
    indent = "  " * depth
    numbers: dict[Value, str] = {}

    def number_value(value: Value) -> str:
        numbers[value] = f"%{len(numbers)}"
        return f"{numbers[value]}: {value.type}"

    yield f"{indent}graph {quote_string(graph.name)}"
    for name, min_length in graph.min_lengths.items():
        yield f"{indent}least {name} {min_length}"
    for name, dim in graph.length_equations.items():
        yield f"{indent}fact {name} = {dim}"
    for name, value in graph.inputs.items():
        input_text = _format_input_facts(graph.input_facts[name])
        yield f"{indent}input {quote_string(name)} {number_value(value)}{input_text}"
    for name, value in graph.parameters.items():
        parameter = graph.parameter_facts[name]
        parameter_text = (
            f"initial={quote_string(parameter.initializer)} "
            f"made_by={quote_string(parameter.declared_by)}"
        )
        yield f"{indent}parameter {quote_string(name)} {number_value(value)} {parameter_text}"
    for node, results in graph.nodes:
        args = ", ".join(numbers[a] if a else "_" for a in node.args)
        results_text = ", ".join(map(number_value, results))
        yield from _format_node(
            node,
            f"{indent}{results_text} = {node.op.name}({args})",
            graph.node_origins.get(node, NodeOrigin()),
            depth,
        )
    for name, value in graph.names.items():
        yield f"{indent}name {quote_string(name)} {numbers[value]}"
    for name, value in graph.outputs.items():
        yield f"{indent}output {quote_string(name)} {numbers[value]}"
    yield f"{indent}end"


def _format_input_facts(facts: Input) -> str:
    """Format the padding side and the upper bound of an input, each as "" if it is absent."""
    padding_text = f" keep={quote_string(facts.padding_side)}" if facts.padding_side else ""
    bound_text = "" if facts.upper_bound is None else f" below={facts.upper_bound}"
    return f"{padding_text}{bound_text}"


def _format_node(node: Node, node_text: str, origin: NodeOrigin, depth: int) -> Iterator[str]:
    """Yield the line of a node, starting with `node_text`, and the lines of its loop body."""
    attribute_texts, bodies = [], []
    for name, value in node.op.get_attributes().items():
        if isinstance(value, Graph):
            bodies.append(value)
        else:
            attribute_texts.append(f"{name}={_format_attribute(value)}")
    assert len(bodies) <= 1, f"{node.op.name} has two bodies"
    attributes = f" {{{', '.join(attribute_texts)}}}" if attribute_texts else ""
    scopes = f" @ {', '.join(map(quote_string, origin.scopes))}" if origin.scopes else ""
    yield f"{node_text}{attributes}{scopes}{' body' if bodies else ''}"
    for body in bodies:
        yield from _format_graph(body, depth + 1)


def _format_attribute(value: object) -> str:
    """Format the value of an op attribute."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case str():
            return quote_string(value)
        case Dim():
            return f"<{value}>"
        case tuple():
            return f"({', '.join(map(_format_attribute, value))})"
        case _:
            raise AssertionError(f"{value!r} has no text form")


MAX_DIM_TEXT_LENGTH = 20_000
MAX_DIM_NESTING = 64
MAX_EXPONENT = 64

TOKEN_PATTERN = re.compile(r"\s*(?:(\d+)|([A-Za-z_][\w.]*)|(//|[-+*^/%(),]))")


def parse_dim(text: str) -> Dim:
    """Parse a dimension, for example `parse_dim("2*seq + 1")`. Raise DimError for an invalid
    dimension.
    """
    if len(text) > MAX_DIM_TEXT_LENGTH:
        raise DimError(f"a dimension has more than {MAX_DIM_TEXT_LENGTH} characters")
    reader = _DimParser(_split_tokens(text))
    dim = reader.parse_sum(0)
    if reader.position != len(reader.tokens):
        raise DimError(f"unexpected `{reader.tokens[reader.position]}` in the dimension `{text}`")
    return dim


def _split_tokens(text: str) -> list[str]:
    """Split the text of a dimension into tokens. Raise DimError for an invalid character."""
    tokens, offset, end = [], 0, len(text.rstrip())
    while offset < end:
        match = TOKEN_PATTERN.match(text, offset)
        if not match:
            raise DimError(f"`{text[offset:].strip()[:20]}` is not part of a dimension")
        tokens.append(match.group().strip())
        offset = match.end()
    return tokens


class _DimParser:
    """A recursive-descent parser of dimensions. `depth` is the nesting depth of parentheses."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.position = 0

    def peek_token(self) -> str:
        """Return the current token, or "" at the end of the text."""
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def take_token(self, *expected: str) -> str:
        """Consume and return the current token if it is in `expected`. Otherwise return ""."""
        token = self.peek_token()
        if token not in expected or not token:
            return ""
        self.position += 1
        return token

    def expect_token(self, token: str) -> None:
        """Consume `token`. Raise DimError for any other token."""
        if not self.take_token(token):
            raise DimError(f"expected `{token}` in a dimension, got `{self.peek_token()}`")

    def parse_sum(self, depth: int) -> Dim:
        """Parse a sum: `[-] term { (+ | -) term }`."""
        total = -self.parse_product(depth) if self.take_token("-") else self.parse_product(depth)
        while sign := self.take_token("+", "-"):
            term = self.parse_product(depth)
            total = total + term if sign == "+" else total - term
        return total

    def parse_product(self, depth: int) -> Dim:
        """Parse a product: `power { * power }`."""
        result = self.parse_power(depth)
        while self.take_token("*"):
            result = result * self.parse_power(depth)
        return result

    def parse_power(self, depth: int) -> Dim:
        """Parse a power: `atom [^ number]`."""
        base = self.parse_atom(depth)
        if not self.take_token("^"):
            return base
        power = self.parse_integer()
        if power > MAX_EXPONENT:
            raise DimError(f"an exponent of {power} in a dimension; the limit is {MAX_EXPONENT}")
        return base**power

    def parse_integer(self) -> int:
        """Parse an integer."""
        token = self.peek_token()
        if not token.isdecimal() or len(token) > 16 or int(token) >= MAX_DIM_INTEGER:
            raise DimError(f"`{token[:20]}` is not a number below 2^53")
        self.position += 1
        return int(token)

    def parse_atom(self, depth: int) -> Dim:
        """Parse a number, a name, `min(a, b)`, `max(a, b)`, `(a)`, `(a / b)`, `(a // b)` or
        `(a % b)`.
        """
        if depth > MAX_DIM_NESTING:
            raise DimError(f"a dimension is nested more than {MAX_DIM_NESTING} levels deep")
        if self.take_token("("):
            dim = self.parse_sum(depth + 1)
            if fn := self.take_token("/", "//", "%"):
                dim = DIM_FUNCTIONS[fn](dim, self.parse_sum(depth + 1))
            self.expect_token(")")
            return dim
        token = self.peek_token()
        if token.isdecimal():
            return Dim.from_value(self.parse_integer())
        if not re.match(r"[A-Za-z_]", token):
            raise DimError(f"expected a number or a name in a dimension, got `{token}`")
        self.position += 1
        if token in ("min", "max") and self.take_token("("):
            return self.parse_binary_call(DIM_FUNCTIONS[token], depth)
        return Dim.symbol(token)

    def parse_binary_call(self, fn: Callable[[Dim, Dim], Dim], depth: int) -> Dim:
        """Parse the two arguments of the function `fn` up to the closing parenthesis."""
        left = self.parse_sum(depth + 1)
        self.expect_token(",")
        right = self.parse_sum(depth + 1)
        self.expect_token(")")
        return fn(left, right)


MAX_RANK = 32

STRING_PATTERN = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
NAME_PATTERN = re.compile(r"[A-Za-z_][\w.]*")
KEYWORD_PATTERN = re.compile(r"[a-z_][a-z0-9_]*")
VALUE_PATTERN = re.compile(r"%(0|[1-9]\d{0,8})(?!\d)")
NUMBER_PATTERN = re.compile(r"-?(?:inf|nan|\d[\d.]*(?:[eE][-+]?\d+)?)")
TYPE_PATTERN = re.compile(r"(\w+)\[([^\[\]]*)\]")
DIM_PATTERN = re.compile(r"<([^<>]*)>")
REST_OF_LINE_PATTERN = re.compile(r".+")


class IrLexer:
    """A lexer that reads the tokens of the textual IR line by line."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.offset = 0
        self.node_count = 0
        self.line = ""
        self.column = 0
        self._load_line()

    def _load_line(self) -> None:
        """Load the line that starts at `offset`, and skip its indentation."""
        self.start = self.offset
        end = self.source.text.find("\n", self.offset)
        end = len(self.source.text) if end < 0 else end
        line = self.source.text[self.offset : end]
        self.line, self.column = line, len(line) - len(line.lstrip(" "))

    def advance_line(self) -> None:
        """Go to the next line. Raise E0928 if the current line has remaining text."""
        if self.column != len(self.line):
            self.raise_syntax_error("unexpected token")
        self.offset = min(self.start + len(self.line) + 1, len(self.source.text))
        self._load_line()

    def get_remaining_span(self) -> Span:
        """Return the span of the remaining part of the current line."""
        return Span(self.source, self.start + self.column, self.start + len(self.line))

    def raise_syntax_error(self, expected: str, span: Span | None = None) -> NoReturn:
        """Raise E0928 with the message `expected` at `span` or at the current position."""
        span = span or self.get_remaining_span()
        raise_error(
            "E0928", f"invalid textual IR: {expected}", span, helps=["compile the model again"]
        )

    def is_next_word(self, word: str) -> bool:
        """Return True if the next token is the keyword `word`."""
        return self.line.startswith(word, self.column)

    def take_word(self, word: str) -> bool:
        """Consume the keyword `word` and return True if it is the next token."""
        if not self.is_next_word(word):
            return False
        self.column += len(word)
        return True

    def expect_word(self, word: str) -> None:
        """Consume the keyword `word`. Raise E0928 for any other token."""
        if not self.take_word(word):
            self.raise_syntax_error(f"expected `{word}`")

    def expect_pattern(self, pattern: re.Pattern[str], description: str) -> re.Match[str]:
        """Consume the text that `pattern` matches. Raise E0928 if `pattern` does not match."""
        match = pattern.match(self.line, self.column)
        if not match:
            self.raise_syntax_error(f"expected {description}")
        self.column = match.end()
        return match

    def read_string(self) -> str:
        """Read a quoted string."""
        raw = self.expect_pattern(STRING_PATTERN, "a quoted string").group()
        try:
            value = json.loads(raw)
        except ValueError:
            self.raise_syntax_error("this string has an unknown escape sequence")
        assert isinstance(value, str)
        return value

    def parse_dim(self, text: str) -> Dim:
        """Parse a dimension. Raise E0928 for an invalid dimension."""
        try:
            return parse_dim(text)
        except DimError as error:
            self.raise_syntax_error(str(error))

    def read_number(self) -> int | float:
        """Read an integer, or a float if it has a decimal point or an exponent."""
        raw = self.expect_pattern(NUMBER_PATTERN, "a number").group()
        try:
            if raw.lstrip("-").isdecimal():
                if len(raw) > 17:
                    self.raise_syntax_error("this number is too long")
                return int(raw)
            return float(raw)
        except ValueError:
            self.raise_syntax_error(f"`{raw}` is not a number")

    def read_type(self) -> Type:
        """Read a tensor type, i.e. an element type and a shape."""
        dtype, shape_text = self.expect_pattern(TYPE_PATTERN, "a type").groups()
        if dtype not in ALL_DTYPES:
            self.raise_syntax_error(f"unknown element type `{dtype}`")
        dims = tuple(self.parse_dim(d) for d in _split_at_commas(shape_text))
        if len(dims) > MAX_RANK:
            self.raise_syntax_error(f"more than {MAX_RANK} axes")
        return Type(dtype, dims)


def _split_at_commas(text: str) -> Iterator[str]:
    """Split a text such as `a, min(b, c), d` at commas outside brackets."""
    depth, start = 0, 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            yield text[start:n]
            start = n + 1
    if text.strip():
        yield text[start:]
