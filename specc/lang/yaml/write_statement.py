"""Tree → YAML values: blocks, statements and expressions.

What owns weights is written as a map, `{linear: {in: x, out: d, weights: q_proj}}`, so
that editors can complete and check it; every other expression is text.
"""

from collections.abc import Sequence

from specc.lang import tree
from specc.lang.dsl.write_expression import one_line, type_text
from specc.lang.yaml.layout import Item, List, Map, Pair, Value


def block_map(node: tree.Block) -> Map:
    """A block or graph."""
    pairs = [Pair(node.kind, node.name)]
    if node.doc:
        pairs.append(Pair("doc", node.doc))
    pairs.append(Pair("in", Map([param(p) for p in node.params])))
    # one result needs no name, and then is its type alone
    if len(node.results) == 1 and not node.results[0].name:
        pairs.append(Pair("out", type_text(node.results[0].type)))
    else:
        pairs.append(Pair("out", Map([param(r) for r in node.results])))
    if node.where:
        lengths = [Pair(e.name, expression(e.value)) for e in node.where]
        pairs.append(Pair("where", Map(lengths)))
    if node.made_for:
        pairs.append(Pair("for", List([Item(name) for name in node.made_for])))
    return Map([*pairs, do("do", node.body, node.end)], tall=True)


def param(node: tree.Param) -> Pair:
    """`x: float[batch, n]`, or with a default as a map."""
    kind = type_text(node.type)
    if node.default is None:
        return Pair(node.name, kind)
    default = Pair("default", expression(node.default))
    return Pair(node.name, Map([Pair("type", kind), default]))


def do(name: str, statements: Sequence[tree.Statement], end: tuple[str, ...]) -> Pair:
    """`do:` with its statements."""
    entries = [statement(s) for s in statements]
    # a list without items has no line of its own that a remark could stand under
    if not entries and end:
        return Pair(name, Map([], end, tall=True))
    return Pair(name, List(entries, end, tall=bool(entries)))


def statement(node: tree.Statement) -> Item:
    """One statement."""
    match node:
        case tree.Let():
            return Item(let(node), node.remarks)
        case tree.Return():
            return Item(Map([Pair("return", returned(node.values))]), node.remarks)
        case tree.Require():
            return Item(require(node), node.remarks)
        case tree.Repeat():
            return Item(repeat(node), node.remarks, headed=True)
        case tree.Scan():
            return Item(scan(node), node.remarks, headed=True)
        case tree.When():
            return Item(when(node), node.remarks, headed=True)


def repeat(node: tree.Repeat) -> Map:
    """`repeat: i in range(n)` and its keys."""
    pairs = [Pair("repeat", f"{node.variable} in {one_line(node.over)}")]
    pairs += [Pair("under", node.under.text)] if node.under is not None else []
    pairs += names("collect", node.collect)
    return Map([*pairs, do("do", node.body, node.end)], tall=True)


def when(node: tree.When) -> Map:
    """`when: c` with `do:`, and `else:` where it says anything, be it a remark."""
    pairs = [Pair("when", expression(node.condition)), do("do", node.body, node.end)]
    if node.otherwise or node.else_end:
        pairs.append(do("else", node.otherwise, node.else_end))
    return Map(pairs, tall=True)


def scan(node: tree.Scan) -> Map:
    """`scan: y in ys` and its keys."""
    over = ", ".join(one_line(e) for e in node.over)
    pairs = [
        Pair("scan", f"{', '.join(node.variables)} in {over}"),
        *([Pair("along", expression(node.along))] if node.along is not None else []),
    ]
    pairs += names("carry", node.carry) + names("collect", node.collect)
    pairs += [Pair("reverse", "true")] if node.reverse else []
    pairs += [Pair("keep", expression(node.keep))] if node.keep is not None else []
    pairs += [Pair("until", expression(node.until))] if node.until is not None else []
    return Map([*pairs, do("do", node.body, node.end)], tall=True)


def names(key: str, given: Sequence[str]) -> list[Pair]:
    """`carry: [s, c]`, or nothing."""
    return [Pair(key, List([Item(n) for n in given]))] if given else []


def require(node: tree.Require) -> Map:
    """`require: c`, `because: text`."""
    because = [Pair("because", node.because)] if node.because else []
    return Map([Pair("require", expression(node.condition)), *because], tall=True)


def let(node: tree.Let) -> Map:
    """`a, b: f(x)`, or with types as `{type:, is:}`."""
    name = ", ".join(t.name for t in node.targets)
    value = expression(node.value)
    if all(t.type is None for t in node.targets):
        return Map([Pair(name, value)])
    types = ", ".join(
        "_" if t.type is None else type_text(t.type) for t in node.targets
    )
    return Map([Pair(name, Map([Pair("type", types), Pair("is", value)]))])


def returned(values: Sequence[tree.Expr]) -> Value:
    """The values of `return`, or the inputs of a call: one as it is, several or a list
    as a list.
    """
    if len(values) == 1 and not isinstance(values[0], tree.ListOf):
        return expression(values[0])
    return List([Item(expression(v)) for v in values])


def owns(expr: tree.Expr) -> bool:
    """Whether a call, or a call that it is given directly, has weights, and a map can say it."""
    if isinstance(expr, tree.ListOf):
        return any(owns(e) for e in expr.items)
    if not isinstance(expr, tree.Call):
        return False
    # an option of such a name would be taken for the key of the map
    if any(o.name in ("in", "weights") for o in expr.options):
        return False
    given = (*expr.args, *(o.value for o in expr.options))
    return expr.weights is not None or any(owns(a) for a in given)


def expression(expr: tree.Expr) -> Value:
    """An expression: a call that owns weights as a map, a list as a list, anything else as text."""
    if isinstance(expr, tree.ListOf):
        return List([Item(expression(e)) for e in expr.items])
    if not isinstance(expr, tree.Call) or not owns(expr):
        return one_line(expr)
    pairs = [Pair("in", returned(expr.args))] if expr.args else []
    pairs += [Pair(o.name, expression(o.value)) for o in expr.options]
    pairs += [Pair("weights", expr.weights.text)] if expr.weights is not None else []
    return Map([Pair(expr.function.path, Map(pairs))])
