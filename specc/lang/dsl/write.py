"""Tree → canonical `.specc` text. This is `specc fmt`: writing what was read from it
gives it again.
"""

from collections.abc import Iterable, Sequence

from specc.lang import tree
from specc.lang.dsl.layout import SECTION, SPACE, WIDTH, Pieces, flat, lines
from specc.lang.dsl.write_expression import (
    field_end,
    field_pieces,
    joined,
    path,
    pieces,
    quote,
    title,
    type_pieces,
    word,
)

STEP = 2
"""Columns a body is moved in."""


def write(file: tree.File) -> str:
    """The text of a spec."""
    out = comments(file.remarks.before, 0)
    out += behind([f"specc {file.version}"], file.remarks)
    doc = [f" {quote(file.doc)}"] if file.doc else []
    out += lines([f"model {title(file.model)}", *doc], 0)
    if file.extends:
        out.append(f"extends {title(file.extends)}")
    previous: tree.Item | None = None
    for item in file.items:
        if previous is None or item.remarks.gap or large(item) or large(previous):
            out.append("")
        out += statement(item, 0)
        previous = item
    if file.end:
        out += ["", *comments(file.end, 0)]
    return "\n".join(out) + "\n"


def large(item: tree.Item) -> bool:
    """Whether empty lines stand around an item."""
    return not isinstance(item, SMALL)


SMALL = tree.Use | tree.Dims | tree.Require | tree.Definition | tree.Stream
"""Items of one line."""


def comments(texts: Iterable[str], indent: int) -> list[str]:
    """Lines of comments."""
    return [" " * indent + f"# {text}".rstrip() for text in texts]


def behind(out: list[str], remarks: tree.Remarks) -> list[str]:
    """Lines with the comment that stands behind the last of them."""
    if remarks.behind:
        out[-1] += f"  # {remarks.behind}"
    return out


def body(
    children: Sequence[tree.Remarked], end: Iterable[str], indent: int
) -> list[str]:
    """The lines between braces."""
    out: list[str] = []
    for child in children:
        # no empty line behind the brace, whatever the user had there
        if child.remarks.gap and out:
            out.append("")
        out += statement(child, indent)
    return out + comments(end, indent)


def statement(node: tree.Remarked, indent: int) -> list[str]:
    """The lines of a statement, item or entry with its comments."""
    above = comments(node.remarks.before, indent)
    match node:
        case tree.Repeat() | tree.Scan() | tree.Block():
            return above + headed(node, indent)
        case tree.When():
            return above + when(node, indent)
        case tree.Config():
            return above + braced("config", node.entries, node, indent, short=0)
        case tree.Reading():
            return above + braced("reading", node.entries, node, indent, short=3)
        case tree.Weights():
            return above + braced("weights", node.rules, node, indent, short=1)
        case tree.Generate():
            head_text = f"generate {node.name} of {node.growing} from {node.source}"
            return above + braced(head_text, node.settings, node, indent, short=3)
        case tree.Quantize():
            return above + braced("quantize", node.entries, node, indent, short=2)
        case tree.Field():
            return above + behind(field(node, indent), node.remarks)
        case _:
            return above + behind(lines(leaf(node), indent), node.remarks)


def headed(node: tree.Repeat | tree.Scan | tree.Block, indent: int) -> list[str]:
    """A head over a body in braces, of a block first what it says of itself."""
    out = behind(lines([*head_pieces(node), " {"], indent), node.remarks)
    if isinstance(node, tree.Block) and node.doc:
        out.append(" " * (indent + STEP) + quote(node.doc))
    return [*out, *body(node.body, node.end, indent + STEP), " " * indent + "}"]


def braced(
    head: str,
    children: Sequence[tree.Remarked],
    node: tree.Config | tree.Reading | tree.Weights | tree.Generate | tree.Quantize,
    indent: int,
    short: int,
) -> list[str]:
    """A head with a body in braces, on one line if it has at most `short` entries and
    no comments.
    """
    if not children and not node.end:
        return behind([f"{' ' * indent}{head} {{}}"], node.remarks)
    # one line if it is short; a comment needs the end of a line for itself
    quiet = not node.end and all(c.remarks == tree.NONE for c in children)
    if quiet and len(children) <= short:
        inside = "  ".join(flat(leaf(c)) for c in children)
        line = f"{' ' * indent}{head} {{ {inside} }}"
        if len(line) <= WIDTH:
            return behind([line], node.remarks)
    first = behind([f"{' ' * indent}{head} {{"], node.remarks)
    return [*first, *body(children, node.end, indent + STEP), " " * indent + "}"]


def when(node: tree.When, indent: int) -> list[str]:
    """`when c { … } else { … }`."""
    out = behind(lines(["when ", *pieces(node.condition), " {"], indent), node.remarks)
    out += body(node.body, node.end, indent + STEP)
    if node.otherwise or node.else_end:
        out.append(" " * indent + "} else {")
        out += body(node.otherwise, node.else_end, indent + STEP)
    return [*out, " " * indent + "}"]


def field(node: tree.Field, indent: int) -> list[str]:
    """A config value; a record whose fields have comments takes a line for each."""
    kind = node.type
    if kind.name != "record" or not commented(kind.fields):
        return lines(field_pieces(node), indent)
    inner = body(kind.fields, (), indent + STEP)
    last = lines(["}", *(["?"] if kind.optional else []), *field_end(node)], indent)
    return [f"{' ' * indent}{node.name}: record {{", *inner, *last]


def commented(fields: Iterable[tree.Field]) -> bool:
    """Whether a comment stands anywhere in the fields of a record."""
    return any(f.remarks != tree.NONE or commented(f.type.fields) for f in fields)


def use(node: tree.Use) -> Pieces:
    """The file or files, the name, and where its config and its weights are."""
    made: Pieces = ["use ", " | ".join(map(quote, node.paths)), f" as {node.name}"]
    if node.sources:
        made.append(" from " + " | ".join(map(quote, node.sources)))
    if node.under is not None:
        made.append(f" under {path(node.under)}")
    return made


def leaf(node: tree.Remarked) -> Pieces:
    """A statement or entry that has no body."""
    match node:
        case tree.Let():
            targets = joined(target(t) for t in node.targets)
            return [*targets, " = ", *pieces(node.value)]
        case tree.Return():
            return ["return ", *joined(pieces(v) for v in node.values)]
        case tree.Require():
            because: Pieces = [",", SPACE, quote(node.because)] if node.because else []
            return ["require ", *pieces(node.condition), *because]
        case tree.Use():
            return use(node)
        case tree.Dims():
            return ["dims ", *joined([length(d)] for d in node.names)]
        case tree.Definition():
            return definition(node)
        case tree.Stream():
            return [f"stream {node.source} of {node.growing}"]
        case (
            tree.Expect()
            | tree.Unread()
            | tree.Assign()
            | tree.Setting()
            | tree.Reads()
            | tree.Shows()
            | tree.Rounds()
        ):
            return entry(node)
        case tree.From() | tree.Tie() | tree.Load() | tree.Ignore() | tree.Share():
            return weight_rule(node)
        case _:
            raise AssertionError(f"{type(node)} has a body")


def entry(
    node: tree.Expect
    | tree.Unread
    | tree.Assign
    | tree.Setting
    | tree.ReadingEntry
    | tree.Rounds,
) -> Pieces:
    """A line of `config`, `reading`, `generate` or `quantize`."""
    match node:
        case tree.Expect():
            values = joined([title(v)] for v in node.values)
            return [f"expect {quote(node.key)} in ", "(", *values, ")"]
        case tree.Unread():
            return ["ignore ", *joined([quote(key)] for key in node.keys)]
        case tree.Rounds(values=[only]):
            return [f"{title(node.name)} = ", word(only.value)]
        case tree.Rounds():
            several = joined([word(v.value)] for v in node.values)
            return [f"{title(node.name)} = ", "[", *several, "]"]
        case tree.Shows():
            return [f"show {node.name} = ", *pieces(node.value)]
        case _:
            return [f"{node.name} = ", *pieces(node.value)]


def length(node: tree.DimName) -> str:
    """`tgt >= 1` in `dims`; 0 is what a length is at least anyway."""
    return f"{node.name} >= {node.least}" if node.least else node.name


def weight_rule(rule: tree.WeightRule) -> Pieces:
    """A rule of `weights`."""
    match rule:
        case tree.From():
            return [f"from {quote(rule.path)}"]
        case tree.Tie():
            source = path(rule.source)
            return [f"tie {path(rule.name)} =", SPACE, source, *_when(rule.condition)]
        case tree.Load():
            how = [f"load {path(rule.name)} = ", *pieces(rule.value)]
            return [*how, *_when(rule.condition)]
        case tree.Ignore():
            return [f"ignore {path(rule.name)}", *_when(rule.condition)]
        case tree.Share():
            return [f"share {path(rule.name)}", *_when(rule.condition)]


def _when(condition: tree.Expr | None) -> Pieces:
    """What stands behind a rule that holds only sometimes."""
    return [] if condition is None else [SPACE, "when ", *pieces(condition)]


def target(node: tree.Target) -> Pieces:
    """`x: float[batch, n]` on the left of `=`."""
    if node.type is None:
        return [node.name]
    return [f"{node.name}: ", *type_pieces(node.type)]


def definition(node: tree.Definition) -> Pieces:
    """`mask window(back, ahead=0) "doc" = …`."""
    doc: Pieces = [f" {quote(node.doc)}"] if node.doc else []
    head: Pieces = [f"{node.kind} ", *definition_head(node), *doc]
    return [*head, " =", SPACE, *pieces(node.value)]


def definition_head(node: tree.Definition) -> Pieces:
    """`window(back, ahead=0)`."""
    if node.params is None:
        return [node.name]
    return [node.name, "(", *joined(parameter(p) for p in node.params), ")"]


def parameter(node: tree.Parameter) -> Pieces:
    """`ahead=0`, `att: int`, `heads: int = 4`."""
    kind: Pieces = [": ", *type_pieces(node.type)] if node.type is not None else []
    equal = " = " if node.type is not None else "="
    value: Pieces = [equal, *pieces(node.default)] if node.default is not None else []
    return [node.name, *kind, *value]


def param(node: tree.Param) -> Pieces:
    """`x: float[batch, n] = 0`."""
    if not node.name:
        return type_pieces(node.type)
    value: Pieces = [" = ", *pieces(node.default)] if node.default is not None else []
    return [f"{node.name}: ", *type_pieces(node.type), *value]


def head_pieces(node: tree.Repeat | tree.Scan | tree.Block) -> Pieces:
    """The first line of a statement or block, without its brace."""
    match node:
        case tree.Repeat():
            found: Pieces = [f"repeat {node.variable} in ", *pieces(node.over)]
            if node.under is not None:
                found += [SPACE, f"under {path(node.under)}"]
            return [*found, *listed("collect", node.collect)]
        case tree.Scan():
            return scan_head(node)
        case tree.Block():
            return block_head(node)


def block_head(node: tree.Block) -> Pieces:
    """`block attention(x: float[n, d]) -> float[n, d] where d = 4`, broken by sections."""
    params = joined(param(p) for p in node.params)
    found: Pieces = [f"{node.kind} {node.name}", "(", *params, ")", SECTION, "-> "]
    # one result needs neither a name nor brackets
    if len(node.results) == 1 and not node.results[0].name:
        found += param(node.results[0])
    else:
        found += ["(", *joined(param(r) for r in node.results), ")"]
    if node.where:
        lengths = ([f"{e.name} = ", *pieces(e.value)] for e in node.where)
        found += [SECTION, "where ", *joined(lengths)]
    if node.made_for:
        names = joined([title(name)] for name in node.made_for)
        found += [SECTION, "for ", *names]
    return found


def scan_head(node: tree.Scan) -> Pieces:
    """`scan y in ys along n carry s`, and what else it says."""
    found: Pieces = [
        f"scan {', '.join(node.variables)} in ",
        *joined(pieces(e) for e in node.over),
    ]
    if node.along is not None:
        found += [SPACE, "along ", *pieces(node.along)]
    found += [*listed("carry", node.carry), *listed("collect", node.collect)]
    if node.reverse:
        found += [SPACE, "reverse"]
    if node.keep is not None:
        found += [SPACE, "keep ", *pieces(node.keep)]
    if node.until is not None:
        found += [SPACE, "until ", *pieces(node.until)]
    return found


def listed(word: str, names: Sequence[str]) -> Pieces:
    """`carry s, c`, or nothing."""
    return [SPACE, f"{word} ", *joined([n] for n in names)] if names else []
