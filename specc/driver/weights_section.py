"""Read and check the `weights { ... }` section: tied weights, load rules, ignored tensors."""

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

WEIGHT_TRANSFORMS = (
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

MAX_STACKED = 65_536
"""Maximum number of tensors that a rule may stack."""


def read_weight_rules(context: Context, program: Program, env: Env) -> WeightRules:
    """Return every tie, load and ignore rule: those of an instance before those of the spec
    that it extends, then those of the specs that it uses.
    """
    rules = _own_rules(context, program, env)
    for used, use, there in iterate_used_specs(program, env.config):
        with show_use_in_errors(use):
            rules = rules.add_fallback_rules(
                _own_rules(context, used, there).add_prefix(there.scope)
            )
    return rules


def _own_rules(context: Context, program: Program, env: Env) -> WeightRules:
    """Return the rules of a spec and of the specs that it extends."""
    ties: list[TieRule] = []
    loads: list[LoadRule] = []
    ignores: list[IgnoreRule] = []
    for item, _ in program.iterate_items(ast.Weights):
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
    """Return whether the condition of a rule, if any, holds for this config."""
    if condition is None:
        return True
    return take_first_result(context.evaluator.evaluate(context, condition, env)) is True


def required_parameters(
    graph: Graph, config: Mapping[str, SpecValue] = EMPTY_NAMES
) -> list[RequiredParameter]:
    """Return the parameters of a graph with their sizes, and the config values that these
    come from. Raise E0308 for a size that is not a positive integer.
    """
    found = []
    for name, facts in graph.parameter_facts.items():
        sizes = []
        for dim in facts.type.shape:
            number = dim.number
            # a checkpoint cannot hold a weight of size 0 or of a dynamic size
            if number is None or number < 1:
                at = dim.origin.span if dim.origin and dim.origin.span else facts.span
                raise_error(
                    "E0308",
                    f"the weight `{name}` would have size {dim}",
                    at,
                    "the size is from here",
                )
            sizes.append(number)
        said = tuple(_find_config_name(dim, config) for dim in facts.type.shape)
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


def _find_config_name(dim: Dim, config: Mapping[str, SpecValue]) -> str:
    """Return the config name written for a size; empty if a block renamed it."""
    name = dim.origin.span.text if dim.origin and dim.origin.span else ""
    return name if name in config and config[name] == dim.number else ""


def merge_required_parameters(graphs: Iterable[Graph]) -> Iterator[RequiredParameter]:
    """Yield the parameters of several graphs."""
    for graph in graphs:
        yield from required_parameters(graph)


def resolve_spec_file(module: SpecModule, name: ast.TextLiteral, what: str, option: str) -> Path:
    """Return the path of a file that a spec names, in or below the directory of the spec.

    Raise E0802 if it cannot be read, E0803 if it is outside. `what` describes the content,
    `option` is the option that accepts other locations.
    """
    try:
        inside = resolve_links(module.directory / name.value)
    except UnreadableFile as error:
        raise_error(
            "E0802", f"{what} `{escape_text(name.value)}` cannot be read: {error.reason}", name.span
        )
    # specs are shared: the location of their files must not depend on the machine
    absolute = Path(name.value).is_absolute()
    if absolute or not inside.is_relative_to(module.directory):
        raise_error(
            "E0803",
            f"`{escape_text(name.value)}` is outside the directory of the spec",
            name.span,
            helps=[f"name it with {option} instead"],
        )
    return inside


def own_weights_entry(program: Program) -> tuple[ast.WeightsFrom, SpecModule] | None:
    """Return the rule that names the weights file of a spec, and its module; None if absent."""
    for item, module in program.iterate_items(ast.Weights):
        for rule in item.rules:
            if isinstance(rule, ast.WeightsFrom):
                return rule, module
    return None


def own_weights_path(program: Program, *, needed: bool = False) -> str:
    """Return the path of the weights file that a spec names; empty if it names none.

    Raise E0802 if it is `needed` and does not exist, e.g. because it is not trained yet.
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
            f"the weights file `{escape_text(rule.path)}` that the spec names does not exist",
            rule.span,
            "no such file next to the spec",
            helps=[
                "train the spec and save its weights there (docs/training.md)",
                "or use random weights: --init SEED",
                "or other weights: --weights FILE or DIR",
            ],
        )
    return str(path)


class _Reader:
    """Reader of `load` expressions, which become transforms of checkpoint tensors."""

    def __init__(self, context: Context, env: Env) -> None:
        self.context, self.env = context, env

    def read(self, expr: Any) -> t.Expr:
        """Return the expression for a tensor name or a transform."""
        match expr:
            case ast.Name(path=path):
                return t.TensorExpr(path)
            case ast.TextLiteral(value=value):
                return t.TensorExpr(value)
            case ast.Call():
                return self._read_call(expr)
        raise_error(
            "E0522", "expected the name of a checkpoint tensor", expr.span, "not a tensor name"
        )

    def _read_call(self, expr: ast.Call) -> t.Expr:
        name = expr.function.path
        make = self._makers().get(name)
        if make is None:
            raise_error(
                "E0522",
                f"unknown transform `{name}`",
                expr.function.span,
                helps=suggest_similar_name(
                    name, WEIGHT_TRANSFORMS, f"transforms are {', '.join(WEIGHT_TRANSFORMS)}"
                ),
            )
        if not expr.args:
            raise_error("E0522", f"`{name}` needs the name of a tensor", expr.span)
        return make(expr)

    def _makers(self) -> Mapping[str, Callable[[ast.Call], t.Expr]]:
        def read(e: ast.Call) -> t.Expr:
            return self.read(e.args[0])

        return {
            "transpose": lambda e: t.TransposeExpr(
                read(e), self._read_ints(e, "axes", None), self._read_ints(e, "unless", None) or ()
            ),
            "reshape": lambda e: t.ReshapeExpr(read(e), self._read_ints(e, "shape", ())),
            "concat": lambda e: t.ConcatExpr(self._read_all(e), self._read_int(e, "axis", 0)),
            "slice": lambda e: t.SliceExpr(
                read(e),
                self._read_int(e, "axis", 0),
                self._read_int(e, "start"),
                self._read_int(e, "stop"),
            ),
            "split": self._read_split,
            "permute_pairs": lambda e: t.PermutePairsExpr(
                read(e), self._read_word(e, "to"), self._read_int(e, "heads")
            ),
            "negate": lambda e: t.NegateExpr(read(e)),
            "cast": lambda e: t.CastExpr(read(e), self._read_word(e, "to")),
            "add": lambda e: t.AddNumberExpr(read(e), float(self._read_value(e, "number"))),
            "resize_grid": lambda e: t.ResizeGridExpr(
                read(e),
                self._read_int(e, "rows"),
                self._read_int(e, "columns"),
                self._read_int(e, "prefix", 0),
            ),
            "first_present": lambda e: t.FirstPresentExpr(self._read_all(e)),
            "stack": lambda e: _read_stack(self, e),
            "rearrange": lambda e: t.RearrangeExpr(
                read(e), self._read_word(e, "pattern"), self._read_sizes(e)
            ),
        }

    def _read_split(self, e: ast.Call) -> t.Expr:
        listed = isinstance(self._check_static(e, "into"), tuple)
        into: int | tuple[int, ...] = (
            self._read_ints(e, "into", ()) if listed else self._read_int(e, "into")
        )
        count = into if isinstance(into, int) else len(into)
        part = self._read_int(e, "part")
        if not 0 <= part < count:
            raise_error(
                "E0522",
                f"`part` of `split` must be from 0 to {count - 1}, as there are {count} parts",
                e.span,
            )
        return t.PartExpr(self.read(e.args[0]), self._read_int(e, "axis", 0), part, into)

    def _read_all(self, e: ast.Call) -> tuple[t.Expr, ...]:
        items = e.args[0].items if isinstance(e.args[0], ast.ListLiteral) else e.args
        return tuple(map(self.read, items))

    def _check_static(self, e: ast.Call, name: str) -> Any:
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

    def _read_value(self, e: ast.Call, name: str, default: Any = None) -> Any:
        value = self._check_static(e, name)
        if value is None:
            if default is None:
                _fail_missing_option(e, name)
            return default
        return value.number if isinstance(value, Dim) else value

    def _read_int(self, e: ast.Call, name: str, default: int | None = None) -> int:
        value = self._read_value(e, name, default)
        if not isinstance(value, int):
            raise_error("E0522", f"`{name}` of `{e.function.path}` must be an integer", e.span)
        return value

    def _read_ints(self, e: ast.Call, name: str, default: Any) -> Any:
        value = self._check_static(e, name)
        if value is None:
            if default == ():
                _fail_missing_option(e, name)
            return default
        numbers = (
            [d.number if isinstance(d, Dim) else None for d in value]
            if isinstance(value, tuple)
            else [None]
        )
        if None in numbers:
            raise_error(
                "E0522", f"`{name}` of `{e.function.path}` must be a list of integers", e.span
            )
        return tuple(numbers)

    def _read_word(self, e: ast.Call, name: str) -> Any:
        if name == "pattern" and len(e.args) > 1 and isinstance(e.args[1], ast.TextLiteral):
            return e.args[1].value
        value = self._read_value(e, name)
        return value.word if isinstance(value, ChoiceValue) else value

    def _read_sizes(self, e: ast.Call) -> tuple[tuple[str, int], ...]:
        known = {"pattern"}
        return tuple((o.name, self._read_int(e, o.name)) for o in e.options if o.name not in known)


def _fail_missing_option(e: ast.Call, name: str) -> NoReturn:
    """Raise E0522: a transform lacks a required option."""
    raise_error("E0522", f"`{e.function.path}` needs `{name}`", e.span)


def _all_contain(placeholder: str, part: t.Expr) -> bool:
    """Return whether every tensor name contains the placeholder."""
    return all(placeholder in name for name in t.list_tensors(part))


def _read_stack(reader: _Reader, e: ast.Call) -> t.Expr:
    """Return the expression of `stack("experts.{e}.w", e=8)`, which expands the placeholder
    `{e}` to 0..7, or of a list of tensors.
    """
    parts = reader._read_all(e)
    holes = [option.name for option in e.options]
    if not holes:
        return t.StackExpr(parts)
    (placeholder, *more), count = holes, reader._read_int(e, holes[0])
    written = "{" + placeholder + "}"
    if more or len(parts) != 1 or not _all_contain(written, parts[0]):
        title = f"`stack` needs one placeholder, `{written}`, in the tensor name"
        raise_error("E0522", title, e.span, helps=["""write `stack("w.{e}", e=8)`"""])
    if not 1 <= count <= MAX_STACKED:
        title = f"`stack` joins 1 to {MAX_STACKED} tensors, not {count}"
        raise_error("E0522", title, e.span)
    return t.StackExpr(tuple(_fill_placeholder(parts[0], written, n) for n in range(count)))


def _fill_placeholder(expr: t.Expr, placeholder: str, number: int) -> t.Expr:
    """Return an expression with a number in place of a placeholder in its tensor names."""
    return t.rename_tensors(expr, lambda name: name.replace(placeholder, str(number)))


def check_rules(
    program: Program,
    context: Context,
    env: Env,
    graph: Graph,
    others: Callable[[], Iterable[Graph]],
) -> None:
    """Raise the errors of `weights { … }` that can be found without any file.

    A rule for weights that this graph does not have may apply to one of the `others` of the
    spec, which are built on demand.
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
