"""Graphs from text: the inverse of `specc.ir.write`.

The text may come out of a model that nobody vouches for. Its size and depth are bounded, only the ops
of `specc.ir.op.OPS` exist, attributes have the types the ops declare, every node is checked by its own
shape rule, and nothing in the text is run. Every fault fails with E0927 (no IR text of this
version, or too much of it) or E0928 (a line that is wrong).
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NoReturn

import specc.ir.ops  # noqa: F401  (fills the table of ops)
from specc.ir.attributes import build
from specc.ir.dim import Dim, DimError
from specc.ir.dim_text import parse_dim
from specc.ir.graph import Graph, Input, Made, Node, Parameter, Value
from specc.ir.types import DTYPES, ShapeError, Type
from specc.ir.write import HEADER
from specc.text.diagnostic import fail
from specc.text.source import Source, Span

LARGEST_TEXT = 64 * 2**20
MOST_NODES = 200_000
MOST_DEPTH = 8
MOST_AXES = 32

TEXT = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
NAME = re.compile(r"[A-Za-z_][\w.]*")
WORD = re.compile(r"[a-z_][a-z0-9_]*")
VALUE = re.compile(r"%(0|[1-9]\d{0,8})(?!\d)")
NUMBER = re.compile(r"-?(?:inf|nan|\d[\d.]*(?:[eE][-+]?\d+)?)")
TYPE = re.compile(r"(\w+)\[([^\[\]]*)\]")
DIM = re.compile(r"<([^<>]*)>")


def read(text: str, name: str = "<ir>") -> dict[str, Graph]:
    """The graphs of a text by name. `name` is what messages call the text."""
    if len(text) > LARGEST_TEXT:
        fail("E0927", f"`{name}` holds more than {LARGEST_TEXT >> 20} MiB of graph text")
    lines = _Lines(Source(name, text))
    if lines.line != HEADER:
        fail(
            "E0927",
            f"`{name}` is no graph text this version can read",
            notes=[f"its first line should be `{HEADER}`"],
            helps=["compile the model again with this version of specc"],
        )
    lines.column = len(HEADER)
    lines.advance()
    graphs: dict[str, Graph] = {}
    while lines.line:
        graph = _GraphReader(lines, 0).read()
        if graph.name in graphs:
            lines.wrong(f"two graphs are called `{graph.name}`")
        graphs[graph.name] = graph
    if lines.at != len(text):
        lines.wrong("nothing may follow an empty line")
    return graphs


class _Lines:
    """The lines of a text, one at a time, and a place in the current one."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.at = 0
        self.nodes = 0
        self.line = ""
        self.column = 0
        self._load()

    def _load(self) -> None:
        self.start = self.at
        end = self.source.text.find("\n", self.at)
        end = len(self.source.text) if end < 0 else end
        whole = self.source.text[self.at : end]
        self.line, self.column = whole, len(whole) - len(whole.lstrip(" "))

    def advance(self) -> None:
        """Go to the next line; the current one must be used up."""
        if self.column != len(self.line):
            self.wrong("this is not expected here")
        self.at = min(self.start + len(self.line) + 1, len(self.source.text))
        self._load()

    def here(self) -> Span:
        """What is left of the current line."""
        return Span(self.source, self.start + self.column, self.start + len(self.line))

    def wrong(self, what: str, span: Span | None = None) -> NoReturn:
        """Fails with E0928 at the current place, or at `span`."""
        span = span or self.here()
        fail("E0928", f"the graph text is wrong: {what}", span, helps=["compile the model again"])

    def peek(self, word: str) -> bool:
        """Whether `word` stands here."""
        return self.line.startswith(word, self.column)

    def skip(self, word: str) -> bool:
        """Step over `word` if it stands here."""
        if not self.peek(word):
            return False
        self.column += len(word)
        return True

    def expect(self, word: str) -> None:
        """Step over `word`, which must stand here."""
        if not self.skip(word):
            self.wrong(f"`{word}` is expected")

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """Step over what `pattern` matches here."""
        found = pattern.match(self.line, self.column)
        if not found:
            self.wrong(f"{what} is expected")
        self.column = found.end()
        return found

    def text(self) -> str:
        """A quoted text."""
        raw = self.match(TEXT, "a text between quotes").group()
        try:
            value = json.loads(raw)
        except ValueError:
            self.wrong("this text has an escape that does not exist")
        assert isinstance(value, str)
        return value

    def dim(self, text: str) -> Dim:
        """A length."""
        try:
            return parse_dim(text)
        except DimError as error:
            self.wrong(str(error))

    def number(self) -> int | float:
        """An int, or a float where it has a point or an exponent."""
        raw = self.match(NUMBER, "a number").group()
        try:
            if raw.lstrip("-").isdecimal():
                if len(raw) > 17:
                    self.wrong("this number is too long")
                return int(raw)
            return float(raw)
        except ValueError:
            self.wrong(f"`{raw}` is no number")

    def type(self) -> Type:
        """An element type and the length of each axis."""
        dtype, inside = self.match(TYPE, "a type").groups()
        if dtype not in DTYPES:
            self.wrong(f"there is no element type `{dtype}`")
        dims = tuple(self.dim(d) for d in _split(inside))
        if len(dims) > MOST_AXES:
            self.wrong(f"more than {MOST_AXES} axes")
        return Type(dtype, dims)


def _split(text: str) -> Iterator[str]:
    """The parts of `a, min(b, c), d` between commas outside of brackets."""
    depth, start = 0, 0
    for n, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            yield text[start:n]
            start = n + 1
    if text.strip():
        yield text[start:]


@dataclass
class _GraphReader:
    """Reads one graph, from its `graph` line to its `end`."""

    lines: _Lines
    depth: int

    def __post_init__(self) -> None:
        self.values: list[Value] = []
        self.inputs: dict[str, Value] = {}
        self.input_facts: dict[str, Input] = {}
        self.parameters: dict[str, Value] = {}
        self.parameter_facts: dict[str, Parameter] = {}
        self.nodes: dict[Node, tuple[Value, ...]] = {}
        self.made: dict[Node, Made] = {}
        self.names: dict[str, Value] = {}
        self.outputs: dict[str, Value] = {}
        self.least: dict[str, int] = {}
        self.facts: dict[str, Dim] = {}

    def read(self) -> Graph:
        """The graph. Lines of one kind follow those of the kind before, as `write` orders them."""
        lines = self.lines
        if self.depth > MOST_DEPTH:
            lines.wrong(f"bodies are nested more than {MOST_DEPTH} deep")
        lines.expect("graph ")
        name = lines.text()
        lines.advance()
        readers = (
            ("least ", self.read_least),
            ("fact ", self.read_fact),
            ("input ", self.read_input),
            ("parameter ", self.read_parameter),
            ("%", self.read_node),
            ("name ", self.read_name),
            ("output ", self.read_output),
        )
        for word, reader in readers:
            while lines.peek(word):
                reader()
        lines.expect("end")
        lines.advance()
        return Graph(
            name,
            self.inputs,
            self.input_facts,
            self.parameters,
            self.parameter_facts,
            tuple(self.nodes.items()),
            self.outputs,
            self.names,
            self.made,
            self.least,
            self.facts,
        )

    def read_least(self) -> None:
        """`least seq 1`"""
        self.lines.expect("least ")
        name = self.lines.match(NAME, "a name").group()
        self.lines.expect(" ")
        bound = self.lines.number()
        if isinstance(bound, float) or name in self.least:
            self.lines.wrong(f"one whole number for `{name}` is expected")
        self.least[name] = bound
        self.lines.advance()

    def read_fact(self) -> None:
        """`fact size = 4*half`"""
        self.lines.expect("fact ")
        name = self.lines.match(NAME, "a name").group()
        self.lines.expect(" = ")
        if name in self.facts:
            self.lines.wrong(f"`{name}` is stated twice")
        self.facts[name] = self.lines.dim(self.lines.match(re.compile(r".+"), "a length").group())
        self.lines.advance()

    def read_input(self) -> None:
        """`input "ids" %0: i64[batch, seq] below=vocab`"""
        lines = self.lines
        lines.expect("input ")
        name = self.unique(self.inputs)
        lines.expect(" ")
        type = self.defined()
        keep = lines.text() if lines.skip(" keep=") else ""
        below = (
            lines.dim(lines.match(re.compile(r".+"), "a length").group()) if lines.skip(" below=") else None
        )
        match keep:
            case "" | "left" | "right" | "any":
                self.input_facts[name] = Input(type, keep, below)
            case _:
                lines.wrong(f"`{keep}` is no side of padding")
        self.inputs[name] = Value(type)
        self.values.append(self.inputs[name])
        lines.advance()

    def read_parameter(self) -> None:
        """`parameter "norm.weight" %1: f32[768] initial="ones" made_by=""`"""
        lines = self.lines
        lines.expect("parameter ")
        name = self.unique(self.parameters)
        lines.expect(" ")
        type = self.defined()
        lines.expect(" initial=")
        initial = lines.text()
        lines.expect(" made_by=")
        self.parameter_facts[name] = Parameter(name, type, initial, None, lines.text())
        self.parameters[name] = Value(type)
        self.values.append(self.parameters[name])
        lines.advance()

    def read_node(self) -> None:
        """`%2: f32[n] = add(%0, %1) {…} @ "scope"`, with a body where it ends in `body`."""
        lines = self.lines
        lines.nodes += 1
        if lines.nodes > MOST_NODES:
            lines.wrong(f"more than {MOST_NODES} nodes")
        place = lines.here()
        said = [self.result(0)]
        while lines.skip(", "):
            said.append(self.result(len(said)))
        lines.expect(" = ")
        name = lines.match(WORD, "the name of an op").group()
        args = self.arguments()
        attributes = self.attributes() if lines.skip(" {") else {}
        scopes = self.scopes() if lines.skip(" @ ") else ()
        has_body = lines.skip(" body")
        lines.advance()
        body = _GraphReader(lines, self.depth + 1).read() if has_body else None
        try:
            node = Node(build(name, attributes, body), args)
            types = node.op.infer(*(a.type if a else None for a in args))
        except (
            ShapeError,
            DimError,
            AssertionError,
            LookupError,
            TypeError,
            ValueError,
            ArithmeticError,
        ) as error:
            # The ops assert what the compiler guarantees; here the text guarantees nothing.
            lines.wrong(f"{name}: {error}" if str(error) else f"`{name}` cannot be built like this", place)
        if [str(t) for t in types] != said:
            lines.wrong(f"{name} gives {', '.join(map(str, types))}", place)
        if node in self.nodes:
            lines.wrong("this node stands here twice", place)
        self.nodes[node] = tuple(Value(t, node) for t in types)
        self.values += self.nodes[node]
        if scopes:
            self.made[node] = Made(scopes)

    def read_name(self) -> None:
        """`name "layers.0:weights" %7`"""
        self.lines.expect("name ")
        name = self.unique(self.names)
        self.lines.expect(" ")
        self.names[name] = self.known()
        self.lines.advance()

    def read_output(self) -> None:
        """`output "logits" %9`"""
        self.lines.expect("output ")
        name = self.unique(self.outputs)
        self.lines.expect(" ")
        self.outputs[name] = self.known()
        self.lines.advance()

    def unique(self, taken: dict[str, Value]) -> str:
        """A quoted name that is not in `taken`."""
        name = self.lines.text()
        if name in taken:
            self.lines.wrong(f"`{name}` stands here twice")
        return name

    def defined(self) -> Type:
        """`%4: f32[n]`, where 4 is the next number."""
        self.number_is(len(self.values))
        return self.lines.type()

    def result(self, n: int) -> str:
        """`%4: f32[n]` for result `n` of a node; its type as text, to be compared with the shape rule's."""
        self.number_is(len(self.values) + n)
        return self.lines.match(TYPE, "a type").group()

    def number_is(self, expected: int) -> None:
        """Step over `%n: `."""
        if int(self.lines.match(VALUE, "a value").group(1)) != expected:
            self.lines.wrong(f"the next value is %{expected}")
        self.lines.expect(": ")

    def known(self) -> Value:
        """A value that was made before."""
        number = int(self.lines.match(VALUE, "a value").group(1))
        if number >= len(self.values):
            self.lines.wrong(f"%{number} is not made before it is used")
        return self.values[number]

    def arguments(self) -> tuple[Value | None, ...]:
        """`(%0, _, %3)`"""
        self.lines.expect("(")
        args: list[Value | None] = []
        while not self.lines.skip(")"):
            if args:
                self.lines.expect(", ")
            args.append(None if self.lines.skip("_") else self.known())
        return tuple(args)

    def attributes(self) -> dict[str, object]:
        """`axis=1, fn="sum"}`"""
        found: dict[str, object] = {}
        while True:
            name = self.lines.match(WORD, "the name of an attribute").group()
            self.lines.expect("=")
            if name in found:
                self.lines.wrong(f"`{name}` stands here twice")
            found[name] = self.attribute(0)
            if self.lines.skip("}"):
                return found
            self.lines.expect(", ")

    def attribute(self, depth: int) -> object:
        """A number, a text, `true`, `false`, `<length>` or a tuple of these."""
        lines = self.lines
        if lines.skip("true"):
            return True
        if lines.skip("false"):
            return False
        if lines.peek('"'):
            return lines.text()
        if lines.peek("<"):
            return lines.dim(lines.match(DIM, "a length").group(1))
        if depth or not lines.skip("("):
            return lines.number()
        items: list[object] = []
        while not lines.skip(")"):
            if items:
                lines.expect(", ")
            items.append(self.attribute(depth + 1))
        return tuple(items)

    def scopes(self) -> tuple[str, ...]:
        """`"layers.0", "layers.1"`"""
        found = [self.lines.text()]
        while self.lines.skip(", "):
            found.append(self.lines.text())
        return tuple(found)
