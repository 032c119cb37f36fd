"""The abstract syntax tree of a spec, shared by the DSL and YAML syntaxes."""

from collections.abc import Iterator
from dataclasses import field, fields
from typing import TypeAlias, dataclass_transform, get_args

from specc.diagnostics.diagnostic import Span
from specc.diagnostics.immutable_dataclass import immutable_dataclass

OptionalSpan: TypeAlias = Span | None


def make_span_field() -> OptionalSpan:
    """Return the dataclass field `span`, a source location that equality ignores."""
    return field(default=None, compare=False, repr=False, kw_only=True)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
class SyntaxNode:
    """The base class of all syntax tree nodes, which are immutable and compared by value."""

    def __init_subclass__(cls, *, kw_only: bool = False) -> None:
        immutable_dataclass(slots=False, kw_only=kw_only)(cls)


class Comments(SyntaxNode):
    """The comments of a syntax tree node. The `leading` comments are on the lines above the node,
    and the `trailing` comment is on the node's last line. Each comment is the text after `#`,
    without surrounding whitespace. `has_blank_line_before` is True if a blank line precedes the
    node in the source.
    """

    leading: tuple[str, ...] = ()
    trailing: str = ""
    has_blank_line_before: bool = field(default=False, compare=False, repr=False)


NO_COMMENTS = Comments()


class SpannedNode(SyntaxNode, kw_only=True):
    """A syntax tree node with a source location, which equality ignores."""

    span: OptionalSpan = make_span_field()


class CommentedNode(SpannedNode, kw_only=True):
    """A syntax tree node that occupies whole lines and can have comments."""

    comments: Comments = NO_COMMENTS


class CommentedBlock(CommentedNode, kw_only=True):
    """A node with a body in braces or below a YAML key. `end_comments` are the comments at the end
    of the body.
    """

    end_comments: tuple[str, ...] = ()


# --- expressions ----------------------------------------------------------------------


class NumberLiteral(SpannedNode):
    """A number literal with its source text, such as `1e-5`."""

    text: str


class StringLiteral(SpannedNode):
    """A string literal, such as `"clip.vocab"`. `value` is the text between the quotes, with
    escapes resolved.
    """

    value: str


class Name(SpannedNode):
    """A name, such as `x` or `config.vision.width`, or a literal `true`, `false` or `none`."""

    path: str


class NamedArg(SpannedNode):
    """A named argument of a call, such as `out=d`."""

    name: str
    value: "Expr"
    name_span: OptionalSpan = make_span_field()


class WeightPath(SpannedNode):
    """The weight path of a call, such as `@ encoder.layers.{i}`. `text` is the weight path,
    including its placeholders `{…}`.
    """

    text: str


class Call(SpannedNode):
    """A call, such as `linear(x, out=d) @ q_proj`."""

    function: Name
    args: tuple["Expr", ...] = ()
    options: tuple[NamedArg, ...] = ()
    weights: WeightPath | None = None


class Slice(SpannedNode):
    """A slice in an index expression: `a:b`, `:`, `1:` or `a:b:s`."""

    start: "Expr | None" = None
    stop: "Expr | None" = None
    step: "Expr | None" = None


class Index(SpannedNode):
    """An index expression, such as `x[:, 0]`."""

    base: "Expr"
    items: tuple["Expr | Slice | EllipsisDims", ...]


class UnaryOp(SpannedNode):
    """A unary operation, `-x` or `not x`, with the operator `op`."""

    op: str
    operand: "Expr"


class BinaryOp(SpannedNode):
    """A binary operation, such as `a + b`, with the operator `op`: `+ - * / // % ** &` or `|`."""

    op: str
    left: "Expr"
    right: "Expr"
    op_span: OptionalSpan = make_span_field()


class Compare(SpannedNode):
    """A chain of comparisons, such as `0 <= i - j < n` or `x in [1, 2]`. The operator `ops[n]`
    (`==`, `!=`, `<=`, `>=`, `<`, `>` or `in`) compares `operands[n]` with `operands[n + 1]`.
    """

    ops: tuple[str, ...]
    operands: tuple["Expr", ...]


class Conditional(SpannedNode):
    """A conditional expression, `a if c else b`."""

    then: "Expr"
    condition: "Expr"
    otherwise: "Expr"


class ListLiteral(SpannedNode):
    """A list, `[a, b]`."""

    items: tuple["Expr", ...]


class ListComprehension(SpannedNode):
    """A list comprehension, `[f(i) for i in n]`."""

    item: "Expr"
    variable: str
    iterable: "Expr"


class RecordLiteral(SpannedNode):
    """A record of config values for a derived or used spec: `{layers = 4 attention = {mask =
    all}}`. In YAML, a record is a nested map.
    """

    fields: tuple[NamedArg, ...]


class EllipsisDims(SpannedNode):
    """An ellipsis `...` in a type or an index expression, which represents any number of axes."""


Expr: TypeAlias = (
    NumberLiteral
    | StringLiteral
    | Name
    | Call
    | Index
    | UnaryOp
    | BinaryOp
    | Compare
    | Conditional
    | ListLiteral
    | ListComprehension
    | RecordLiteral
)

# --- types ----------------------------------------------------------------------------


class TypeExpr(SpannedNode, kw_only=True):
    """A declared type, such as `float[batch, n, d]`, `int`, `keep[batch, src]`, `activation?` or
    `list[int]`.

    `element_type` is the element type of `list[…]` or `pair[…]`. `dims` is None for a type without
    brackets. `side` is the padding side after `keep[…]`, `left` or `right`, or "" if there is none.
    `names` are the alternatives of `choice(a | b)`, and `fields` are the fields of `record { … }`.
    """

    name: str
    dims: tuple["Expr | EllipsisDims", ...] | None = None
    optional: bool = False
    side: str = ""
    names: tuple[str, ...] = ()
    fields: tuple["ConfigField", ...] = ()
    element_type: "TypeExpr | None" = None


MISSING_TYPE = TypeExpr(name="_")
"""Placeholder for a parameter type that is invalid or declared in the `inputs` section."""


class BlockParameter(SpannedNode):
    """A parameter or result of a block or graph, such as `source_keep: keep[batch, src] = source !=
    pad`. If `is_from_inputs` is True, the type and the default come from the `inputs` section.
    """

    name: str
    type: TypeExpr
    default: Expr | None = None
    is_from_inputs: bool = False


# --- statements -----------------------------------------------------------------------


class AssignmentTarget(SpannedNode):
    """A name on the left side of `=`, such as `x` or `x: float[batch, n]`. The target `_` ignores a
    result.
    """

    name: str
    type: TypeExpr | None = None


class Assignment(CommentedNode):
    """An assignment, such as `a, b = f(x)`."""

    targets: tuple[AssignmentTarget, ...]
    value: Expr


class RepeatLoop(CommentedBlock, kw_only=True):
    """A loop that is unrolled at compile time: `repeat i in layers under "layers.{i}" collect h { …
    }`.
    """

    variable: str
    iterable: Expr
    under: WeightPath | None = None
    collect: tuple[str, ...] = ()
    body: tuple["Statement", ...]


class ScanLoop(CommentedBlock, kw_only=True):
    """A run-time loop: `scan y, m in ys, ms along tgt carry s, c collect out reverse keep k until
    all(d) { … }`.

    Each loop variable iterates over one sequence. `along` is the symbolic size of the scanned axis.
    Without `along`, the loop has a single entry in `sequences`, which is the trip count. `keep` is
    a padding mask [batch, along]. `until` is the early-exit condition of each batch element.
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


class WhenStatement(CommentedBlock, kw_only=True):
    """A compile-time conditional: `when c { … } else { … }`."""

    condition: Expr
    body: tuple["Statement", ...]
    otherwise: tuple["Statement", ...] = ()
    else_end_comments: tuple[str, ...] = ()


class ReturnStatement(CommentedNode):
    """A statement that returns the results of a block: `return logits, weights`."""

    values: tuple[Expr, ...]


class RequireStatement(CommentedNode):
    """A condition for config values: `require d % heads == 0, "heads must divide the width"`."""

    condition: Expr
    because: str = ""


Statement: TypeAlias = (
    Assignment | RepeatLoop | ScanLoop | WhenStatement | ReturnStatement | RequireStatement
)

# --- items ----------------------------------------------------------------------------


class ConfigField(CommentedNode, kw_only=True):
    """A config field: `layers: int from "num_hidden_layers" | "n_layer" = 12 "how many blocks"`.

    Each of the `sources` is a path in config.json as a string, or a call such as `len("id2label")`,
    `repeated("attention_types")` or `rope_config(theta=10000.0)`.
    """

    name: str
    type: TypeExpr
    sources: tuple[Expr, ...] = ()
    default: Expr | None = None
    doc: str = ""


class ExpectedConfigValues(CommentedNode):
    """The supported values of a config.json key: `expect "model_type" in (vit, deit)`."""

    key: str
    values: tuple[str, ...]


class IgnoredConfigKeys(CommentedNode):
    """Config keys that do not affect the model: `ignore "initializer_range", "use_cache"`."""

    keys: tuple[str, ...]


class ConfigOverride(CommentedNode):
    """A value that a derived spec's `config` sets for a field of the base spec: `heads = 4`."""

    name: str
    value: Expr


ConfigEntry: TypeAlias = ConfigField | ExpectedConfigValues | IgnoredConfigKeys | ConfigOverride


class ConfigSection(CommentedBlock):
    """The config fields of a spec: `config { … }`."""

    entries: tuple[ConfigEntry, ...]


class DimsSection(CommentedNode):
    """The dynamic dimensions of a spec, with optional lower bounds: `dims batch, src, tgt >= 1`."""

    dims: tuple["DimDecl", ...]


class DimDecl(SpannedNode):
    """A dynamic dimension with the lower bound `minimum` (default 0)."""

    name: str
    minimum: int = 0


class InputDecl(CommentedNode):
    """An entry of an `inputs` section: `keep: keep[batch, n] right = ids != pad`."""

    name: str
    type: TypeExpr
    default: Expr | None = None


class InputsSection(CommentedBlock):
    """The types and defaults of inputs that several graphs share: `inputs { … }`. The parsers copy
    types and defaults to graph parameters that have no type.
    """

    entries: tuple[InputDecl, ...]


class UseStatement(CommentedNode, kw_only=True):
    """A statement that makes the blocks and graphs of a file available under a name: `use
    "vit.specc" as v`.

    `use "llama" | "mistral" as text from "text_config" under language_model` uses one of several
    specs, with a separate config and separate weights. The config of the used spec is the value of
    one of the config.json keys `sources`. The source "." is the config of the using spec. The
    weights of the used spec are below the weight path `under`.
    """

    paths: tuple[str, ...]
    name: str
    sources: tuple[str, ...] = ()
    under: WeightPath | None = None

    @property
    def has_own_config(self) -> bool:
        """True if the used spec has a separate config and separate weights."""
        return bool(self.paths[1:] or self.sources or self.under)

    @property
    def path(self) -> str:
        """The path of the used file, or of the first file if there are alternatives."""
        return self.paths[0]


class Equation(SpannedNode):
    """An equation between dimensions after `where`, such as `total = past + seq`."""

    name: str
    value: Expr


class Block(CommentedBlock, kw_only=True):
    """A block or graph definition: `block name(params) -> results "doc" { … }`.

    `kind` is `block` or `graph`. Only a graph may have `where` equations. A single unnamed result
    has the name "". The graph is selected if `architectures` in config.json contains one of
    `architectures`.
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


class AttentionDef(CommentedNode, kw_only=True):
    """A mask, score, bias or normalizer: `mask window(back, ahead=0) = 0 <= i - j < back`.

    `kind` is one of `DEFINITION_KINDS`. `params` is None for a definition without parentheses. A
    parameter may have a type and a default value, as in `score general(dim: int)`.
    """

    kind: str
    name: str
    params: tuple["DefinitionParameter", ...] | None
    value: Expr
    doc: str = ""
    name_span: OptionalSpan = make_span_field()


class DefinitionParameter(SpannedNode):
    """A parameter of a definition."""

    name: str
    type: TypeExpr | None = None
    default: Expr | None = None


class InputPreprocessing(CommentedNode):
    """The preprocessing of an input, in a `reading` section: `pixels = image(size=[8, 8])`."""

    name: str
    value: Expr


class OutputPostprocessing(CommentedNode):
    """The postprocessing of a result in a `reading` section: `show logits = choice(labels)`."""

    name: str
    value: Expr


ReadingEntry: TypeAlias = InputPreprocessing | OutputPostprocessing


class PreprocessingSection(CommentedBlock):
    """The preprocessing and postprocessing of a spec: `reading { … }`."""

    entries: tuple[ReadingEntry, ...]


class WeightsFile(CommentedNode):
    """The weights file of a spec: `from "digits.safetensors"`."""

    path: str


class WeightTyingRule(CommentedNode):
    """A tied weight: `tie lm_head.weight = wte.weight when tied`. If the file contains no tensor
    `name`, the weight `name` is loaded from the tensor `source`.
    """

    name: WeightPath
    source: WeightPath
    condition: Expr | None = None


class LoadRule(CommentedNode):
    """An expression that computes a parameter from tensors of the file: `load a.weight =
    transpose(b.weight)`.

    A `Name` or `StringLiteral` in `value` is a tensor name, with pattern variables such as `{i}`.
    """

    name: WeightPath
    value: Expr
    condition: Expr | None = None


class IgnoreRule(CommentedNode):
    """Name patterns of tensors in the weights file that the model does not use: `ignore
    "layers.{i}.attn.bias", "classifier.*"`. `*` matches any characters.
    """

    names: tuple[WeightPath, ...]
    condition: Expr | None = None


class WeightSharingRule(CommentedNode):
    """A weight path at which all calls share the same weights: `share encoder.layer when tied`."""

    name: WeightPath
    condition: Expr | None = None


WeightRule: TypeAlias = WeightsFile | WeightTyingRule | LoadRule | IgnoreRule | WeightSharingRule


class WeightsSection(CommentedBlock):
    """The rules for loading weights: `weights { … }`."""

    rules: tuple[WeightRule, ...]


class GenerateSetting(CommentedNode):
    """A setting of a `generate` section, such as `stop = eos`."""

    name: str
    value: Expr


class GenerateSection(CommentedBlock, kw_only=True):
    """A `generate` section: `generate translation of target from logits { start = bos stop = eos
    }`.
    """

    name: str
    input_name: str
    output_name: str
    settings: tuple[GenerateSetting, ...] = ()


class StreamSection(CommentedNode):
    """A `stream` section with the names of the streamed output and input: `stream logits of
    audio`.
    """

    output_name: str
    input_name: str


class QuantizeSetting(CommentedNode):
    """An entry of a `quantize` section, such as `int4 = ["*.mlp.*"]`. The value is a word or a list
    of weight name patterns. A single value is equivalent to a list of one item.
    """

    name: str
    values: tuple[StringLiteral, ...]


class QuantizeSection(CommentedBlock):
    """A `quantize` section, which sets weight formats: `quantize { default = int8 }`."""

    entries: tuple[QuantizeSetting, ...]


Item: TypeAlias = (
    UseStatement
    | ConfigSection
    | DimsSection
    | InputsSection
    | RequireStatement
    | Block
    | AttentionDef
    | PreprocessingSection
    | WeightsSection
    | GenerateSection
    | QuantizeSection
    | StreamSection
)
Commentable: TypeAlias = (
    Statement
    | Item
    | ConfigEntry
    | InputDecl
    | ReadingEntry
    | WeightRule
    | GenerateSetting
    | QuantizeSetting
)
"""The classes of nodes that occupy whole lines and can have comments."""


class File(CommentedNode, kw_only=True):
    """A spec file. `comments.leading` are the comments above the first line, and `end_comments` are
    those below the last item.
    """

    version: int
    model: str
    doc: str = ""
    extends: str = ""
    items: tuple[Item, ...] = ()
    end_comments: tuple[str, ...] = ()
    extends_span: OptionalSpan = make_span_field()


Node: TypeAlias = (
    Expr
    | NamedArg
    | WeightPath
    | Slice
    | EllipsisDims
    | TypeExpr
    | BlockParameter
    | Comments
    | AssignmentTarget
    | Commentable
    | DimDecl
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
"""The fields of each AST class, except comments and spans."""


def iterate_children(node: Node) -> Iterator[Node]:
    """Yield the child nodes of a node, in source order."""
    for name in CONTENT_FIELDS[type(node)]:
        value = getattr(node, name)
        if type(value) in NODE_SET:
            yield value
        elif type(value) is tuple:
            yield from (v for v in value if type(v) in NODE_SET)


def walk_tree(node: Node) -> Iterator[Node]:
    """Yield a node and all its descendants in preorder."""
    stack = [node]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(list(iterate_children(node))))


def flatten_binary_chain(expr: BinaryOp) -> tuple[Expr, list[BinaryOp]]:
    """Return the leftmost operand of a chain such as `a + b - c`, and the operations of the chain
    from left to right.
    """
    operations: list[BinaryOp] = []
    left: Expr = expr
    while isinstance(left, BinaryOp):
        operations.append(left)
        left = left.left
    operations.reverse()
    return left, operations
