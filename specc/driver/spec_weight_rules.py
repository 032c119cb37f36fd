"""Read and check the `weights { ... }` section: ties, loads, ignored tensors."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.context import EMPTY_NAMES, Context, Env, SpecModule
from specc.frontend.spec_modules import Program
from specc.frontend.spec_values import ChoiceValue, SpecValue, take_first_result
from specc.frontend.used_specs import iterate_used_specs, show_use_in_errors
from specc.io.safe_read import UnreadableFile, escape_text, resolve_links
from specc.ir.dim import Dim
from specc.ir.graph import Graph
from specc.syntax import ast
from specc.weights import weight_expressions as t
from specc.weights.initializers import parse_initializer
from specc.weights.weight_rules import (
    IgnoreRule,
    LoadRule,
    RequiredParameter,
    TieRule,
    WeightRules,
    check_loads_used,
    find_tied_pairs,
    rules_of_graph,
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


def read_weight_rules(context: Context, program: Program, env: Env) -> WeightRules:
    """Every tie, load and ignore of the spec, an instance's own first; those of the specs
    it uses come behind its own.
    """
    rules = _own_rules(context, program, env)
    for used, use, there in iterate_used_specs(program, env.config):
        with show_use_in_errors(use):
            rules = rules.and_then(_own_rules(context, used, there).under(there.scope))
    return rules


def _own_rules(context: Context, program: Program, env: Env) -> WeightRules:
    """What a spec and those it extends say."""
    ties: list[TieRule] = []
    loads: list[LoadRule] = []
    ignores: list[IgnoreRule] = []
    for item, _ in program.items(ast.Weights):
        for rule in item.rules:
            match rule:
                case ast.WeightsFrom() | ast.Share():
                    continue
                case _ if not is_condition_true(rule.condition, context, env):
                    continue
                case ast.Tie(name=name, source=source):
                    ties.append(TieRule(name.text, source.text, rule.span))
                case ast.Load(name=name, value=value):
                    how = _Reader(context, env).read(value)
                    loads.append(LoadRule(name.text, how, rule.span))
                case ast.Ignore(name=name):
                    ignores.append(IgnoreRule(name.text, rule.span))
    return WeightRules(tuple(ties), tuple(loads), tuple(ignores))


def is_condition_true(condition: ast.Expr | None, context: Context, env: Env) -> bool:
    """Whether the condition of a rule, if it has one, is true of this config."""
    if condition is None:
        return True
    return take_first_result(context.evaluator.evaluate(context, condition, env)) is True


def required_parameters(
    graph: Graph, config: Mapping[str, SpecValue] = EMPTY_NAMES
) -> list[RequiredParameter]:
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
                raise_error(
                    "E0308", f"the weight `{name}` would be {dim} long", at, "this decides its size"
                )
            sizes.append(number)
        said = tuple(_size_of(dim, config) for dim in facts.type.shape)
        found.append(
            RequiredParameter(
                name=name,
                shape=tuple(sizes),
                dtype=facts.type.dtype,
                span=facts.span,
                made_by=facts.made_by,
                sizes=said,
            )
        )
    return found


def _size_of(dim: Dim, config: Mapping[str, SpecValue]) -> str:
    """The config value written for a length, if it is that: a block may name others so."""
    name = dim.origin.span.text if dim.origin and dim.origin.span else ""
    return name if name in config and config[name] == dim.number else ""


def merge_required_parameters(graphs: Iterable[Graph]) -> Iterator[RequiredParameter]:
    """The parameters of several graphs."""
    for graph in graphs:
        yield from required_parameters(graph)


def resolve_spec_file(module: SpecModule, name: ast.TextLiteral, what: str, option: str) -> Path:
    """A file that a spec names, in or below its own folder. E0802 and E0803; `what` says
    what it holds, `option` names one elsewhere.
    """
    try:
        inside = resolve_links(module.folder / name.value)
    except UnreadableFile as error:
        raise_error(
            "E0802", f"{what} `{escape_text(name.value)}` cannot be read: {error.reason}", name.span
        )
    # A spec is shared; where its files lie must not depend on whose machine it is on.
    absolute = Path(name.value).is_absolute()
    if absolute or not inside.is_relative_to(module.folder):
        raise_error(
            "E0803",
            f"`{escape_text(name.value)}` lies outside the folder of the spec",
            name.span,
            helps=[f"name it with {option} instead"],
        )
    return inside


def own_weights_entry(program: Program) -> tuple[ast.WeightsFrom, SpecModule] | None:
    """Where a spec says from which file it takes its weights, if it does."""
    for item, module in program.items(ast.Weights):
        for rule in item.rules:
            if isinstance(rule, ast.WeightsFrom):
                return rule, module
    return None


def own_weights_path(program: Program, *, needed: bool = False) -> str:
    """The file a spec takes its weights from, in or below its own folder. E0802 for one
    that is `needed` and not there: it may be that nobody has trained it yet.
    """
    source = own_weights_entry(program)
    if source is None:
        return ""
    rule, module = source
    name = ast.TextLiteral(rule.path, span=rule.span)
    path = resolve_spec_file(module, name, "the weights", "--weights")
    if needed and not path.exists():
        raise_error(
            "E0802",
            f"the weights `{escape_text(rule.path)}` that the spec names are not there",
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
            case ast.Name(path=path):
                return t.TensorExpr(path)
            case ast.TextLiteral(value=value):
                return t.TensorExpr(value)
            case ast.Call():
                return self._call(expr)
        raise_error(
            "E0522",
            "a weight is made from tensors of the file",
            expr.span,
            "this is not the name of one",
        )

    def _call(self, expr: ast.Call) -> t.Expr:
        name = expr.function.path
        make = self._makers().get(name)
        if make is None:
            raise_error(
                "E0522",
                f"there is no transform `{name}`",
                expr.function.span,
                helps=suggest_similar_name(name, TRANSFORMS, f"there are {', '.join(TRANSFORMS)}"),
            )
        if not expr.args:
            raise_error("E0522", f"`{name}` needs the name of a tensor", expr.span)
        return make(expr)

    def _makers(self) -> Mapping[str, Callable[[ast.Call], t.Expr]]:
        def one(e: ast.Call) -> t.Expr:
            return self.read(e.args[0])

        return {
            "transpose": lambda e: t.TransposeExpr(one(e), self._ints(e, "axes", None)),
            "reshape": lambda e: t.ReshapeExpr(one(e), self._ints(e, "shape", ())),
            "concat": lambda e: t.ConcatExpr(self._all(e), self._int(e, "axis", 0)),
            "slice": lambda e: t.SliceExpr(
                one(e), self._int(e, "axis", 0), self._int(e, "start"), self._int(e, "stop")
            ),
            "split": self._split,
            "permute_pairs": lambda e: t.PermutePairsExpr(
                one(e), self._word(e, "to"), self._int(e, "heads")
            ),
            "negate": lambda e: t.NegateExpr(one(e)),
            "cast": lambda e: t.CastExpr(one(e), self._word(e, "to")),
            "add": lambda e: t.AddNumberExpr(one(e), float(self._value(e, "number"))),
            "resize_grid": lambda e: t.ResizeGridExpr(
                one(e), self._int(e, "rows"), self._int(e, "columns"), self._int(e, "prefix", 0)
            ),
            "first_present": lambda e: t.FirstPresentExpr(self._all(e)),
            "stack": lambda e: _stacked(self, e),
            "rearrange": lambda e: t.RearrangeExpr(
                one(e), self._word(e, "pattern"), self._sizes(e)
            ),
        }

    def _split(self, e: ast.Call) -> t.Expr:
        listed = isinstance(self._static(e, "into"), tuple)
        into: int | tuple[int, ...] = self._ints(e, "into", ()) if listed else self._int(e, "into")
        count = into if isinstance(into, int) else len(into)
        part = self._int(e, "part")
        if not 0 <= part < count:
            raise_error(
                "E0522",
                f"`part` of `split` is from 0 to {count - 1}, as there are {count} parts",
                e.span,
            )
        return t.PartExpr(self.read(e.args[0]), self._int(e, "axis", 0), part, into)

    def _all(self, e: ast.Call) -> tuple[t.Expr, ...]:
        items = e.args[0].items if isinstance(e.args[0], ast.ListLiteral) else e.args
        return tuple(self.read(i) for i in items)

    def _static(self, e: ast.Call, name: str) -> Any:
        for option in e.options:
            if option.name == name:
                if isinstance(option.value, ast.Name) and option.value.path in (
                    "half",
                    "interleaved",
                ):
                    return option.value.path
                return take_first_result(
                    self.context.evaluator.evaluate(self.context, option.value, self.env)
                )
        return None

    def _value(self, e: ast.Call, name: str, default: Any = None) -> Any:
        value = self._static(e, name)
        if value is None:
            if default is None:
                _missing(e, name)
            return default
        return value.number if isinstance(value, Dim) else value

    def _int(self, e: ast.Call, name: str, default: int | None = None) -> int:
        value = self._value(e, name, default)
        if not isinstance(value, int):
            raise_error("E0522", f"`{name}` of `{e.function.path}` is a whole number", e.span)
        return value

    def _ints(self, e: ast.Call, name: str, default: Any) -> Any:
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
            raise_error(
                "E0522", f"`{name}` of `{e.function.path}` is a list of whole numbers", e.span
            )
        return tuple(numbers)

    def _word(self, e: ast.Call, name: str) -> Any:
        if name == "pattern" and len(e.args) > 1 and isinstance(e.args[1], ast.TextLiteral):
            return e.args[1].value
        value = self._value(e, name)
        return value.word if isinstance(value, ChoiceValue) else value

    def _sizes(self, e: ast.Call) -> tuple[tuple[str, int], ...]:
        known = {"pattern"}
        return tuple((o.name, self._int(e, o.name)) for o in e.options if o.name not in known)


def _missing(e: ast.Call, name: str) -> NoReturn:
    """E0522 for an option that a transform cannot do without."""
    raise_error("E0522", f"`{e.function.path}` needs `{name}`", e.span)


def _everywhere(hole: str, part: t.Expr) -> bool:
    """Whether every tensor that is named has the hole in its name."""
    return all(hole in name for name in t.list_tensors(part))


def _stacked(reader: _Reader, e: ast.Call) -> t.Expr:
    """`stack("experts.{e}.w", e=8)`: as many tensors as `{e}` has numbers, or a list
    of them.
    """
    parts = reader._all(e)
    holes = [option.name for option in e.options]
    if not holes:
        return t.StackExpr(parts)
    (hole, *more), count = holes, reader._int(e, holes[0])
    written = "{" + hole + "}"
    if more or len(parts) != 1 or not _everywhere(written, parts[0]):
        title = f"`stack` counts with one hole, `{written}`, of a name"
        raise_error("E0522", title, e.span, helps=["""write `stack("w.{e}", e=8)`"""])
    if not 1 <= count <= MOST_STACKED:
        title = f"`stack` makes rows of 1 to {MOST_STACKED} tensors, not {count}"
        raise_error("E0522", title, e.span)
    return t.StackExpr(tuple(_numbered(parts[0], written, n) for n in range(count)))


def _numbered(expr: t.Expr, hole: str, number: int) -> t.Expr:
    """An expression with a number in place of a hole in its names."""
    return t.rename_tensors(expr, lambda name: name.replace(hole, str(number)))


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
    wanted = {w.name: w for w in required_parameters(graph)}
    rules = rules_of_graph(
        read_weight_rules(context, program, env),
        wanted,
        lambda: merge_required_parameters(others()),
    )
    find_tied_pairs(wanted, rules)
    check_loads_used(wanted, rules)
    own_weights_path(program)
    for facts in graph.parameter_facts.values():
        parse_initializer(facts.initial, facts.span)
