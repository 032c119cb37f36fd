"""The abstract syntax tree of a spec, shared by the DSL and YAML syntaxes."""

from collections.abc import Iterator
from dataclasses import field, fields
from typing import TypeAlias, get_args

from specc.diagnostics.diagnostic import Span
from specc.diagnostics.value_class import value_class

OptionalSpan: TypeAlias = Span | None


def make_span_field() -> OptionalSpan:
    """Return the `span` field of AST classes: the source location, ignored by comparison."""
    return field(default=None, compare=False, repr=False, kw_only=True)


@value_class(slots=True)
class Comments:
    """Comments of a statement: those on the lines above it, and the trailing one on its last line.
    Each is the string after `#`, stripped. `has_blank_line_before` is set if the source has a blank
    line above, which printers keep.
    """

    leading: tuple[str, ...] = ()
    trailing: str = ""
    has_blank_line_before: bool = field(default=False, compare=False, repr=False)


NO_COMMENTS = Comments()


@value_class(slots=True, kw_only=True)
class SpannedNode:
    """A node with its source location, which comparison ignores."""

    span: OptionalSpan = make_span_field()


@value_class(slots=True, kw_only=True)
class CommentedNode(SpannedNode):
    """A node on its own lines, to which comments can belong."""

    comments: Comments = NO_COMMENTS


@value_class(slots=True, kw_only=True)
class CommentedBlock(CommentedNode):
    """A node with a body in braces, or entries below a key; `end` are the comments at its end."""

    end: tuple[str, ...] = ()


# --- expressions ----------------------------------------------------------------------


@value_class(slots=True)
class NumberLiteral(SpannedNode):
    """A number literal in source form, such as `1e-5`."""

    text: str


@value_class(slots=True)
class TextLiteral(SpannedNode):
    """A string literal such as `"clip.vocab"`: the characters between the quotes, with escapes
    resolved.
    """

    value: str


@value_class(slots=True)
class Name(SpannedNode):
    """A dotted name, such as `x` or `config.vision.width`; also `true`, `false` and `none`."""

    path: str


@value_class(slots=True)
class Option(SpannedNode):
    """A named argument of a call, such as `out=d`."""

    name: str
    value: "Expr"
    name_span: OptionalSpan = make_span_field()


@value_class(slots=True)
class WeightName(SpannedNode):
    """The weight path of a call, such as `@ encoder.layers.{i}`. `text` contains unresolved
    `{…}`.
    """

    text: str


@value_class(slots=True)
class Call(SpannedNode):
    """A call, such as `linear(x, out=d) @ q_proj`."""

    function: Name
    args: tuple["Expr", ...] = ()
    options: tuple[Option, ...] = ()
    weights: WeightName | None = None


@value_class(slots=True)
class Slice(SpannedNode):
    """A slice in an index expression: `a:b`, `:`, `1:` or `a:b:s`."""

    start: "Expr | None" = None
    stop: "Expr | None" = None
    step: "Expr | None" = None


@value_class(slots=True)
class Index(SpannedNode):
    """An index expression, such as `x[:, 0]`."""

    base: "Expr"
    items: tuple["Expr | Slice | EllipsisDims", ...]


@value_class(slots=True)
class Unary(SpannedNode):
    """A unary operation, `-x` or `not x`. `op` is `-` or `not`."""

    op: str
    operand: "Expr"


@value_class(slots=True)
class Binary(SpannedNode):
    """A binary operation, such as `a + b`. `op` is one of `+ - * / // % ** & |`."""

    op: str
    left: "Expr"
    right: "Expr"
    op_span: OptionalSpan = make_span_field()


@value_class(slots=True)
class Compare(SpannedNode):
    """A chain of comparisons, such as `0 <= i - j < n` or `x in [1, 2]`. `ops[n]`, one of `== != <=
    >= < > in`, compares `operands[n]` with `operands[n + 1]`.
    """

    ops: tuple[str, ...]
    operands: tuple["Expr", ...]


@value_class(slots=True)
class Conditional(SpannedNode):
    """A conditional expression, `a if c else b`."""

    then: "Expr"
    condition: "Expr"
    otherwise: "Expr"


@value_class(slots=True)
class ListLiteral(SpannedNode):
    """A list, `[a, b]`."""

    items: tuple["Expr", ...]


@value_class(slots=True)
class ListComprehension(SpannedNode):
    """A list comprehension, `[f(i) for i in n]`."""

    item: "Expr"
    variable: str
    iterable: "Expr"


@value_class(slots=True)
class RecordLiteral(SpannedNode):
    """A record of config values for a derived spec or a used spec:
    `{layers = 4 attention = {mask = all}}` in the DSL, a nested map in YAML.
    """

    fields: tuple[Option, ...]


@value_class(slots=True)
class EllipsisDims(SpannedNode):
    """An ellipsis, `...`, in a type or an index expression, which represents any number of axes."""


Expr: TypeAlias = (
    NumberLiteral
    | TextLiteral
    | Name
    | Call
    | Index
    | Unary
    | Binary
    | Compare
    | Conditional
    | ListLiteral
    | ListComprehension
    | RecordLiteral
)

# --- types ----------------------------------------------------------------------------


@value_class(slots=True, kw_only=True)
class TypeName(SpannedNode):
    """A declared type: `float[batch, n, d]`, `int`, `keep[batch, src]`, `activation?`, `list[int]`,
    `text`.

    `element_type` is the type of the elements of `list[…]` or `pair[…]`. `dims` is None for a type
    without brackets. `side` is the padding side after `keep[…]`: `left`, `right` or "". `names` are
    the alternatives of `choice(a | b)`, `fields` those of `record { … }`.
    """

    name: str
    dims: tuple["Expr | EllipsisDims", ...] | None = None
    optional: bool = False
    side: str = ""
    names: tuple[str, ...] = ()
    fields: tuple["Field", ...] = ()
    element_type: "TypeName | None" = None


@value_class(slots=True)
class BlockParameter(SpannedNode):
    """An input of a graph, a parameter of a block, or a result: `source_keep: keep[batch, src] =
    source != pad`.
    """

    name: str
    type: TypeName
    default: Expr | None = None


# --- statements -----------------------------------------------------------------------


@value_class(slots=True)
class Target(SpannedNode):
    """A name on the left of `=`, such as `x` or `x: float[batch, n]`. `_` skips a result."""

    name: str
    type: TypeName | None = None


@value_class(slots=True)
class Let(CommentedNode):
    """An assignment, such as `a, b = f(x)`."""

    targets: tuple[Target, ...]
    value: Expr


@value_class(slots=True, kw_only=True)
class Repeat(CommentedBlock):
    """A loop that is unrolled at compile time: `repeat i in layers under "layers.{i}" collect h { …
    }`.
    """

    variable: str
    iterable: Expr
    under: WeightName | None = None
    collect: tuple[str, ...] = ()
    body: tuple["Statement", ...]


@value_class(slots=True, kw_only=True)
class Scan(CommentedBlock):
    """A run-time loop: `scan y, m in ys, ms along tgt carry s, c collect out reverse keep k until
    all(d) { … }`.

    Each variable iterates over one sequence. `along` is the symbolic size of the scanned axis;
    without it, the only sequence is the trip count. `keep` is a padding mask [batch, along];
    `until` is the early-exit condition of a batch element.
    """

    variables: tuple[str, ...] = ()
    sequences: tuple[Expr, ...] = ()
    along: Expr | None = None
    carry: tuple[str, ...] = ()
    collect: tuple[str, ...] = ()
    body: tuple["Statement", ...]
    reverse: bool = False
    keep: Expr | None = None
    until: Expr | None = None


@value_class(slots=True, kw_only=True)
class When(CommentedBlock):
    """A compile-time conditional: `when c { … } else { … }`."""

    condition: Expr
    body: tuple["Statement", ...]
    otherwise: tuple["Statement", ...] = ()
    else_end: tuple[str, ...] = ()


@value_class(slots=True)
class Return(CommentedNode):
    """The results of a block: `return logits, weights`."""

    values: tuple[Expr, ...]


@value_class(slots=True)
class Require(CommentedNode):
    """A condition on config values: `require d % heads == 0, "heads must divide the width"`."""

    condition: Expr
    because: str = ""


Statement: TypeAlias = Let | Repeat | Scan | When | Return | Require

# --- items ----------------------------------------------------------------------------


@value_class(slots=True, kw_only=True)
class Field(CommentedNode):
    """A config field: `layers: int from "num_hidden_layers" | "n_layer" = 12 "how many blocks"`.

    Each source is an expression: a string is a path in config.json; `len("id2label")`,
    `repeated("attention_types")` and `rope_config(theta=10000.0)` are calls.
    """

    name: str
    type: TypeName
    sources: tuple[Expr, ...] = ()
    default: Expr | None = None
    doc: str = ""


@value_class(slots=True)
class Expect(CommentedNode):
    """The values of a config.json key that a spec supports:
    `expect "model_type" in (vit, deit)`.
    """

    key: str
    values: tuple[str, ...]


@value_class(slots=True)
class IgnoredKeys(CommentedNode):
    """The keys of config.json that do not affect the model:
    `ignore "initializer_range", "use_cache"`.
    """

    keys: tuple[str, ...]


@value_class(slots=True)
class Assign(CommentedNode):
    """A value for a field of the base spec, in the `config` of a derived spec: `heads = 4`."""

    name: str
    value: Expr


ConfigEntry: TypeAlias = Field | Expect | IgnoredKeys | Assign


@value_class(slots=True)
class Config(CommentedBlock):
    """The config fields of a spec: `config { … }`."""

    entries: tuple[ConfigEntry, ...]


@value_class(slots=True)
class Dims(CommentedNode):
    """The dynamic dimensions of a spec: `dims batch, src, tgt >= 1`; a lower bound may follow a
    name.
    """

    names: tuple["DimName", ...]


@value_class(slots=True)
class DimName(SpannedNode):
    """One dynamic dimension, which is at least `minimum` (default 0)."""

    name: str
    minimum: int = 0


@value_class(slots=True, kw_only=True)
class Use(CommentedNode):
    """A file whose blocks and graphs a spec uses under a name: `use "vit.specc" as v`.

    `use "llama" | "mistral" as text from "text_config" under language_model`: one of several files,
    with its own config (under one of the keys `sources` of config.json) and its own weights (below
    the path `under`).
    """

    paths: tuple[str, ...]
    name: str
    sources: tuple[str, ...] = ()
    under: WeightName | None = None

    @property
    def has_own_config(self) -> bool:
        """True if the used spec has its own config and weights."""
        return bool(self.paths[1:] or self.sources or self.under)

    @property
    def path(self) -> str:
        """The path of the file, or of the first alternative."""
        return self.paths[0]


@value_class(slots=True)
class Equation(SpannedNode):
    """An equation of dimensions after `where`, such as `total = past + seq`."""

    name: str
    value: Expr


@value_class(slots=True, kw_only=True)
class Block(CommentedBlock):
    """A block or graph: `block name(params) -> results "doc" { … }`.

    `kind` is `block` or `graph`; a graph may have `where` equations. `results` is a tuple of
    `BlockParameter`s; a single unnamed result has name "". `architectures` are those of checkpoints
    for this graph, as in `architectures` of config.json.
    """

    kind: str
    name: str
    params: tuple[BlockParameter, ...] = ()
    results: tuple[BlockParameter, ...]
    body: tuple[Statement, ...]
    where: tuple[Equation, ...] = ()
    architectures: tuple[str, ...] = ()
    doc: str = ""
    name_span: OptionalSpan = make_span_field()


DEFINITION_KINDS = ("mask", "score", "bias", "normalizer")


@value_class(slots=True, kw_only=True)
class Definition(CommentedNode):
    """A named expression with parameters: `mask window(back, ahead=0) = 0 <= i - j < back`.

    `kind` is one of `DEFINITION_KINDS`. `params` is None if there are no parentheses. A parameter
    may have a type and a default: `score general(dim: int)`; without a type its `type` is None.
    """

    kind: str
    name: str
    params: tuple["DefinitionParameter", ...] | None
    value: Expr
    doc: str = ""
    name_span: OptionalSpan = make_span_field()


@value_class(slots=True)
class DefinitionParameter(SpannedNode):
    """A parameter of a definition."""

    name: str
    type: TypeName | None = None
    default: Expr | None = None


@value_class(slots=True)
class InputPreprocessing(CommentedNode):
    """The preprocessing of an input in `reading`: `pixels = image(size=[8, 8])`."""

    name: str
    value: Expr


@value_class(slots=True)
class OutputPostprocessing(CommentedNode):
    """The postprocessing of a result in `reading`: `show logits = choice(labels, top=3)`."""

    name: str
    value: Expr


ReadingEntry: TypeAlias = InputPreprocessing | OutputPostprocessing


@value_class(slots=True)
class Reading(CommentedBlock):
    """The preprocessing and postprocessing of a spec: `reading { … }`."""

    entries: tuple[ReadingEntry, ...]


@value_class(slots=True)
class WeightsFile(CommentedNode):
    """The weights file of a spec: `from "digits.safetensors"`."""

    path: str


@value_class(slots=True)
class Tie(CommentedNode):
    """A tied weight: `tie lm_head.weight = wte.weight when
    tied`. The weight `source` is used if the file has no tensor `name`.
    """

    name: WeightName
    source: WeightName
    condition: Expr | None = None


@value_class(slots=True)
class Load(CommentedNode):
    """An expression that computes a parameter from tensors of the file:
    `load a.weight = transpose(b.weight)`.

    In `value` a `Name` or `TextLiteral` is the name of a tensor, with pattern variables as `{i}`.
    """

    name: WeightName
    value: Expr
    condition: Expr | None = None


@value_class(slots=True)
class Ignore(CommentedNode):
    """The tensors of the file that the model does not use: `ignore "layers.{i}.attn.bias"`; `*`
    matches any characters.
    """

    name: WeightName
    condition: Expr | None = None


@value_class(slots=True)
class Share(CommentedNode):
    """A weight path whose weights all calls with this path share:
    `share encoder.layer when tied`.
    """

    name: WeightName
    condition: Expr | None = None


WeightRule: TypeAlias = WeightsFile | Tie | Load | Ignore | Share


@value_class(slots=True)
class Weights(CommentedBlock):
    """The rules for loading weights: `weights { … }`."""

    rules: tuple[WeightRule, ...]


@value_class(slots=True)
class Setting(CommentedNode):
    """A setting in `generate`, such as `stop = eos`."""

    name: str
    value: Expr


@value_class(slots=True, kw_only=True)
class Generate(CommentedBlock):
    """A `generate` section: `generate translation of target from logits { start = bos stop = eos
    }`.
    """

    name: str
    input_name: str
    source: str
    settings: tuple[Setting, ...] = ()


@value_class(slots=True)
class Stream(CommentedNode):
    """A `stream` section, `stream logits of audio`: an output computed from chunks of an input."""

    source: str
    input_name: str


@value_class(slots=True)
class QuantizeEntry(CommentedNode):
    """An entry of `quantize`, `int4 = ["*.mlp.*"]`: a setting with its value, or with patterns of
    weight names. A single value is the same as a list of one.
    """

    name: str
    values: tuple[TextLiteral, ...]


@value_class(slots=True)
class Quantize(CommentedBlock):
    """The quantization formats of weights: `quantize { default = int8 exclude = ["lm_head"] }`."""

    entries: tuple[QuantizeEntry, ...]


Item: TypeAlias = (
    Use
    | Config
    | Dims
    | Require
    | Block
    | Definition
    | Reading
    | Weights
    | Generate
    | Quantize
    | Stream
)
Commentable: TypeAlias = (
    Statement | Item | ConfigEntry | ReadingEntry | WeightRule | Setting | QuantizeEntry
)
"""Nodes on their own lines, which can have comments."""


@value_class(slots=True, kw_only=True)
class File(CommentedNode):
    """A spec file. `comments.leading` are the comments above the first line, `end` those below the
    last item.
    """

    version: int
    model: str
    doc: str = ""
    extends: str = ""
    items: tuple[Item, ...] = ()
    end: tuple[str, ...] = ()
    extends_span: OptionalSpan = make_span_field()


Node: TypeAlias = (
    Expr
    | Option
    | WeightName
    | Slice
    | EllipsisDims
    | TypeName
    | BlockParameter
    | Comments
    | Target
    | Commentable
    | DimName
    | Equation
    | DefinitionParameter
    | File
)

NODE_CLASSES: tuple[type[Node], ...] = get_args(Node)
NODE_SET = frozenset(NODE_CLASSES)
FIELD_NAMES = {c: tuple(f.name for f in fields(c)) for c in NODE_CLASSES}
"""All fields of each AST class, in order."""
SPAN_FIELDS = ("span", "name_span", "op_span", "extends_span")
CONTENT_FIELDS = {
    c: tuple(n for n in names if n not in SPAN_FIELDS) for c, names in FIELD_NAMES.items()
}
"""The fields of each AST class without comments and spans."""


def iterate_children(node: Node) -> Iterator[Node]:
    """Yield the child nodes of a node, in source order."""
    for name in CONTENT_FIELDS[type(node)]:
        value = getattr(node, name)
        if type(value) in NODE_SET:
            yield value
        elif type(value) is tuple:
            yield from (v for v in value if type(v) in NODE_SET)


def walk_tree(node: Node) -> Iterator[Node]:
    """Yield a node and all its descendants, parents first."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(iterate_children(node))))


def flatten_binary_chain(expr: Binary) -> tuple[Expr, list[Binary]]:
    """Return the leftmost operand of a chain such as `a + b - c`, and the operations that follow
    it, from left to right.
    """
    operations: list[Binary] = []
    left: Expr = expr
    while isinstance(left, Binary):
        operations.append(left)
        left = left.left
    operations.reverse()
    return left, operations
