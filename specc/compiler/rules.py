"""A spec's `weights { … }` as rules, read and checked before there is any file."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from specc.elaborate.blame import blamed
from specc.elaborate.context import NOTHING, Context, Env, Module
from specc.elaborate.modules import Program
from specc.elaborate.parts import used_specs
from specc.elaborate.values import Known, Picked, first
from specc.files.read import Unreadable, resolved, shown
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.lang import tree
from specc.text.diagnostic import fail
from specc.text.suggest import suggest
from specc.weights import initial
from specc.weights import transform as t
from specc.weights.rules import (
    IgnoreRule,
    LoadRule,
    Rules,
    TieRule,
    Wanted,
    check_used,
    of_graph,
    tied_pairs,
)

TRANSFORMS = (
    "transpose",
    "reshape",
    "concat",
    "slice",
    "split",
    "permute_pairs",
    "negate",
    "cast",
    "add",
    "resize_grid",
    "first_present",
    "stack",
    "rearrange",
)

MOST_STACKED = 65_536
"""Tensors that a rule may join into one."""


def rules_of(context: Context, program: Program, env: Env) -> Rules:
    """Every tie, load and ignore of the spec, an instance's own first; those of the specs
    it uses come behind its own.
    """
    rules = _own_rules(context, program, env)
    for used, use, there in used_specs(program, env.config):
        with blamed(use):
            rules = rules.and_then(_own_rules(context, used, there).under(there.scope))
    return rules


def _own_rules(context: Context, program: Program, env: Env) -> Rules:
    """What a spec and those it extends say."""
    ties: list[TieRule] = []
    loads: list[LoadRule] = []
    ignores: list[IgnoreRule] = []
    for item, _ in program.items(tree.Weights):
        for rule in item.rules:
            match rule:
                case tree.From() | tree.Share():
                    continue
                case _ if not holds(rule.condition, context, env):
                    continue
                case tree.Tie(name=name, source=source):
                    ties.append(TieRule(name.text, source.text, rule.span))
                case tree.Load(name=name, value=value):
                    how = _Reader(context, env).read(value)
                    loads.append(LoadRule(name.text, how, rule.span))
                case tree.Ignore(name=name):
                    ignores.append(IgnoreRule(name.text, rule.span))
    return Rules(tuple(ties), tuple(loads), tuple(ignores))


def holds(condition: tree.Expr | None, context: Context, env: Env) -> bool:
    """Whether the condition of a rule, if it has one, is true of this config."""
    if condition is None:
        return True
    return first(context.evaluator.evaluate(context, condition, env)) is True


def wanted_of(graph: Graph, config: Mapping[str, Known] = NOTHING) -> list[Wanted]:
    """The parameters of a graph with their sizes as numbers, and which values of the
    `config` those are. Fails with E0308 where one is no size.
    """
    found = []
    for name, facts in graph.parameter_facts.items():
        sizes = []
        for dim in facts.type.shape:
            number = dim.number
            # A weight of no size, or of one that is known only when the model runs,
            # could be in no file.
            if number is None or number < 1:
                at = dim.origin.span if dim.origin and dim.origin.span else facts.span
                fail(
                    "E0308",
                    f"the weight `{name}` would be {dim} long",
                    at,
                    "this decides its size",
                )
            sizes.append(number)
        said = tuple(_size_of(dim, config) for dim in facts.type.shape)
        found.append(
            Wanted(
                name=name,
                shape=tuple(sizes),
                dtype=facts.type.dtype,
                span=facts.span,
                made_by=facts.made_by,
                sizes=said,
            )
        )
    return found


def _size_of(dim: Dim, config: Mapping[str, Known]) -> str:
    """The config value written for a length, if it is that: a block may name others so."""
    name = dim.origin.span.text if dim.origin and dim.origin.span else ""
    return name if name in config and config[name] == dim.number else ""


def wanted_by(graphs: Iterable[Graph]) -> Iterator[Wanted]:
    """The parameters of several graphs."""
    for graph in graphs:
        yield from wanted_of(graph)


def file_beside(module: Module, name: tree.Text, what: str, option: str) -> Path:
    """A file that a spec names, in or below its own folder. E0802 and E0803; `what` says
    what it holds, `option` names one elsewhere.
    """
    try:
        inside = resolved(module.folder / name.value)
    except Unreadable as error:
        fail(
            "E0802",
            f"{what} `{shown(name.value)}` cannot be read: {error.reason}",
            name.span,
        )
    # A spec is shared; where its files lie must not depend on whose machine it is on.
    absolute = Path(name.value).is_absolute()
    if absolute or not inside.is_relative_to(module.folder):
        fail(
            "E0803",
            f"`{shown(name.value)}` lies outside the folder of the spec",
            name.span,
            helps=[f"name it with {option} instead"],
        )
    return inside


def own_source(program: Program) -> tuple[tree.From, Module] | None:
    """Where a spec says from which file it takes its weights, if it does."""
    for item, module in program.items(tree.Weights):
        for rule in item.rules:
            if isinstance(rule, tree.From):
                return rule, module
    return None


def own_weights(program: Program, *, needed: bool = False) -> str:
    """The file a spec takes its weights from, in or below its own folder. E0802 for one
    that is `needed` and not there: it may be that nobody has trained it yet.
    """
    source = own_source(program)
    if source is None:
        return ""
    rule, module = source
    name = tree.Text(rule.path, span=rule.span)
    path = file_beside(module, name, "the weights", "--weights")
    if needed and not path.exists():
        fail(
            "E0802",
            f"the weights `{shown(rule.path)}` that the spec names are not there",
            rule.span,
            "no such file beside the spec",
            helps=[
                "train the spec, and save its weights there (docs/training.md)",
                "or try it with drawn ones: --init SEED",
                "or name others: --weights FILE or DIR",
            ],
        )
    return str(path)


class _Reader:
    """Turns the right side of `load` into a transform."""

    def __init__(self, context: Context, env: Env) -> None:
        self.context, self.env = context, env

    def read(self, expr: Any) -> t.Expr:
        """A tensor's name, or a transform of such."""
        match expr:
            case tree.Name(path=path):
                return t.Tensor(path)
            case tree.Text(value=value):
                return t.Tensor(value)
            case tree.Call():
                return self._call(expr)
        fail(
            "E0522",
            "a weight is made from tensors of the file",
            expr.span,
            "this is not the name of one",
        )

    def _call(self, expr: tree.Call) -> t.Expr:
        name = expr.function.path
        make = self._makers().get(name)
        if make is None:
            fail(
                "E0522",
                f"there is no transform `{name}`",
                expr.function.span,
                helps=suggest(name, TRANSFORMS, f"there are {', '.join(TRANSFORMS)}"),
            )
        if not expr.args:
            fail("E0522", f"`{name}` needs the name of a tensor", expr.span)
        return make(expr)

    def _makers(self) -> Mapping[str, Callable[[tree.Call], t.Expr]]:
        def one(e: tree.Call) -> t.Expr:
            return self.read(e.args[0])

        return {
            "transpose": lambda e: t.Transpose(one(e), self._ints(e, "axes", None)),
            "reshape": lambda e: t.Reshape(one(e), self._ints(e, "shape", ())),
            "concat": lambda e: t.Concat(self._all(e), self._int(e, "axis", 0)),
            "slice": lambda e: t.Slice(
                one(e),
                self._int(e, "axis", 0),
                self._int(e, "start"),
                self._int(e, "stop"),
            ),
            "split": self._split,
            "permute_pairs": lambda e: t.PermutePairs(
                one(e), self._word(e, "to"), self._int(e, "heads")
            ),
            "negate": lambda e: t.Negate(one(e)),
            "cast": lambda e: t.Cast(one(e), self._word(e, "to")),
            "add": lambda e: t.AddNumber(one(e), float(self._value(e, "number"))),
            "resize_grid": lambda e: t.ResizeGrid(
                one(e),
                self._int(e, "rows"),
                self._int(e, "columns"),
                self._int(e, "prefix", 0),
            ),
            "first_present": lambda e: t.FirstPresent(self._all(e)),
            "stack": lambda e: _stacked(self, e),
            "rearrange": lambda e: t.Rearrange(
                one(e), self._word(e, "pattern"), self._sizes(e)
            ),
        }

    def _split(self, e: tree.Call) -> t.Expr:
        listed = isinstance(self._static(e, "into"), tuple)
        into: int | tuple[int, ...] = (
            self._ints(e, "into", ()) if listed else self._int(e, "into")
        )
        count = into if isinstance(into, int) else len(into)
        part = self._int(e, "part")
        if not 0 <= part < count:
            fail(
                "E0522",
                f"`part` of `split` is from 0 to {count - 1}, as there are {count} parts",
                e.span,
            )
        return t.Part(self.read(e.args[0]), self._int(e, "axis", 0), part, into)

    def _all(self, e: tree.Call) -> tuple[t.Expr, ...]:
        items = e.args[0].items if isinstance(e.args[0], tree.ListOf) else e.args
        return tuple(self.read(i) for i in items)

    def _static(self, e: tree.Call, name: str) -> Any:
        for option in e.options:
            if option.name == name:
                if isinstance(option.value, tree.Name) and option.value.path in (
                    "half",
                    "interleaved",
                ):
                    return option.value.path
                return first(
                    self.context.evaluator.evaluate(
                        self.context, option.value, self.env
                    )
                )
        return None

    def _value(self, e: tree.Call, name: str, default: Any = None) -> Any:
        value = self._static(e, name)
        if value is None:
            if default is None:
                _missing(e, name)
            return default
        return value.number if isinstance(value, Dim) else value

    def _int(self, e: tree.Call, name: str, default: int | None = None) -> int:
        value = self._value(e, name, default)
        if not isinstance(value, int):
            fail("E0522", f"`{name}` of `{e.function.path}` is a whole number", e.span)
        return value

    def _ints(self, e: tree.Call, name: str, default: Any) -> Any:
        value = self._static(e, name)
        if value is None:
            if default == ():
                _missing(e, name)
            return default
        numbers = (
            [d.number if isinstance(d, Dim) else None for d in value]
            if isinstance(value, tuple)
            else [None]
        )
        if None in numbers:
            fail(
                "E0522",
                f"`{name}` of `{e.function.path}` is a list of whole numbers",
                e.span,
            )
        return tuple(numbers)

    def _word(self, e: tree.Call, name: str) -> Any:
        if name == "pattern" and len(e.args) > 1 and isinstance(e.args[1], tree.Text):
            return e.args[1].value
        value = self._value(e, name)
        return value.word if isinstance(value, Picked) else value

    def _sizes(self, e: tree.Call) -> tuple[tuple[str, int], ...]:
        known = {"pattern"}
        return tuple(
            (o.name, self._int(e, o.name)) for o in e.options if o.name not in known
        )


def _missing(e: tree.Call, name: str) -> NoReturn:
    """E0522 for an option that a transform cannot do without."""
    fail("E0522", f"`{e.function.path}` needs `{name}`", e.span)


def _everywhere(hole: str, part: t.Expr) -> bool:
    """Whether every tensor that is named has the hole in its name."""
    return all(hole in name for name in t.tensors_of(part))


def _stacked(reader: _Reader, e: tree.Call) -> t.Expr:
    """`stack("experts.{e}.w", e=8)`: as many tensors as `{e}` has numbers, or a list
    of them.
    """
    parts = reader._all(e)
    holes = [option.name for option in e.options]
    if not holes:
        return t.Stack(parts)
    (hole, *more), count = holes, reader._int(e, holes[0])
    written = "{" + hole + "}"
    if more or len(parts) != 1 or not _everywhere(written, parts[0]):
        title = f"`stack` counts with one hole, `{written}`, of a name"
        fail("E0522", title, e.span, helps=["""write `stack("w.{e}", e=8)`"""])
    if not 1 <= count <= MOST_STACKED:
        title = f"`stack` makes rows of 1 to {MOST_STACKED} tensors, not {count}"
        fail("E0522", title, e.span)
    return t.Stack(tuple(_numbered(parts[0], written, n) for n in range(count)))


def _numbered(expr: t.Expr, hole: str, number: int) -> t.Expr:
    """An expression with a number in place of a hole in its names."""
    return t.renamed(expr, lambda name: name.replace(hole, str(number)))


def check_rules(
    program: Program,
    context: Context,
    env: Env,
    graph: Graph,
    others: Callable[[], Iterable[Graph]],
) -> None:
    """What `weights { … }` says, as far as it can be wrong without any file.

    A rule about weights that this graph does not have may be for one of the `others` of
    the spec, which are made where that is asked.
    """
    wanted = {w.name: w for w in wanted_of(graph)}
    rules = of_graph(
        rules_of(context, program, env), wanted, lambda: wanted_by(others())
    )
    tied_pairs(wanted, rules)
    check_used(wanted, rules)
    own_weights(program)
    for facts in graph.parameter_facts.values():
        initial.parse(facts.initial, facts.span)
