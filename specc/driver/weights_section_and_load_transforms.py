"""Read and check the `weights { ... }` section: tied weights, load rules with their transforms,
ignored tensors.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.suggest import suggest_similar_name
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.elaboration_context import EMPTY_NAMES, LexicalScope, SpecNamespace
from specc.frontend.spec_modules import Program
from specc.frontend.spec_to_graph import create_context, evaluate_and_check_config
from specc.frontend.spec_values import SpecValue, StringChoice, get_first_result
from specc.frontend.used_specs import add_use_label_to_errors, iterate_used_specs
from specc.io.safe_read import UnreadableFileError, escape_text, resolve_symlinks
from specc.ir.dim import Dim, multiply_dims, sum_dims
from specc.ir.graph import Graph
from specc.ir.model_definition import ModelDefinition
from specc.syntax import ast
from specc.weights import weight_expressions as t
from specc.weights.parameter_name_patterns import NamePattern
from specc.weights.weight_rules_and_initializers import (
    IgnoreRule,
    LoadRule,
    ModelParameter,
    WeightRules,
    WeightTyingRule,
    parse_initializer,
    reject_unused_load_rules,
    resolve_weight_ties,
    select_graph_weight_rules,
)

MAX_STACKED = 65_536
"""Maximum number of tensors that one rule stacks."""


def read_weight_rules(program: Program, env: LexicalScope) -> WeightRules:
    """Read the tie, load and ignore rules of a derived spec, its base spec, and its used specs."""
    rules = _read_spec_rules(program, env)
    for used_program, use, used_env in iterate_used_specs(program, env):
        with add_use_label_to_errors(use):
            rules = rules.add_fallback_rules(
                _read_spec_rules(used_program, used_env).add_prefix(used_env.scope)
            )
    return rules


def evaluate_weight_rules(
    program: Program, options: ConfigReadOptions
) -> tuple[WeightRules, Mapping[str, SpecValue]]:
    """Return the weight rules whose conditions the config satisfies, and the config values."""
    context = create_context(program)
    config = evaluate_and_check_config(context, program, options)
    return read_weight_rules(
        program, LexicalScope(context=context, module=program.module, config=config)
    ), config


def _read_spec_rules(program: Program, env: LexicalScope) -> WeightRules:
    """Read the weight rules of a spec, including those of the specs that it extends."""
    ties: list[WeightTyingRule] = []
    loads: list[LoadRule] = []
    ignores: list[IgnoreRule] = []
    for item, _ in program.iterate_items(ast.WeightsSection):
        for rule in item.rules:
            match rule:
                case ast.WeightsFile() | ast.WeightSharingRule():
                    continue
                case _ if not _is_condition_true(rule.condition, env):
                    continue
                case ast.WeightTyingRule(name=name, source=source):
                    ties.append(WeightTyingRule(name.text, source.text, rule.span))
                case ast.LoadRule(name=name, value=value):
                    expression = _read_load(env, value)
                    loads.append(LoadRule(name.text, expression, rule.span))
                case ast.IgnoreRule(names=names):
                    ignores += (IgnoreRule(name.text, rule.span) for name in names)
    return WeightRules(tuple(ties), tuple(loads), tuple(ignores))


def _is_condition_true(condition: ast.Expr | None, env: LexicalScope) -> bool:
    """Return True if a weight rule has no condition, or if the config in `env` satisfies it."""
    if condition is None:
        return True
    return env.evaluate_value(condition) is True


def list_model_parameters(
    graph: Graph, config: Mapping[str, SpecValue] = EMPTY_NAMES
) -> list[ModelParameter]:
    """Return the parameters of a graph, with the config names that determine their sizes. Raise
    E0308 if a size is not a positive integer.
    """
    parameters = []
    for name, facts in graph.parameter_facts.items():
        sizes = []
        for dim in facts.type.shape:
            number = dim.number
            # a checkpoint cannot contain a weight with an empty or dynamic dimension
            if number is None or number < 1:
                span = dim.origin.span if dim.origin and dim.origin.span else facts.span
                raise_error(
                    "E0308",
                    f"the weight `{name}` has size {dim}, expected an integer of at least 1",
                    span,
                    "the size is defined here",
                )
            sizes.append(number)
        size_names = tuple(_find_config_name(dim, config) for dim in facts.type.shape)
        parameters.append(
            ModelParameter(
                name=name,
                shape=tuple(sizes),
                dtype=facts.type.dtype,
                span=facts.span,
                origin=facts.declared_by,
                config_names=size_names,
            )
        )
    return parameters


def _find_config_name(dim: Dim, config: Mapping[str, SpecValue]) -> str:
    """Return the config name that determines a dimension, or "" if no config name determines it."""
    name = dim.origin.span.text if dim.origin and dim.origin.span else ""
    return name if name in config and config[name] == dim.number else ""


def iterate_graph_parameters(graphs: Iterable[Graph]) -> Iterator[ModelParameter]:
    """Yield the parameters of several graphs. A shared parameter is yielded once per graph."""
    for graph in graphs:
        yield from list_model_parameters(graph)


def resolve_referenced_file(
    module: SpecNamespace, name: ast.StringLiteral, description: str, option: str
) -> Path:
    """Resolve the path of a file that a spec names, in or below the directory of the spec.

    Raise E0802 if the file cannot be read, and E0803 if the file is outside the spec's directory.
    `description` names the content in messages. `option` accepts paths to other directories.
    """
    try:
        path = resolve_symlinks(module.directory / name.value)
    except UnreadableFileError as error:
        raise_error(
            "E0802",
            f"{description} `{escape_text(name.value)}` cannot be read: {error.reason}",
            name.span,
        )
    # a portable spec must not contain paths that exist on only one machine
    is_absolute = Path(name.value).is_absolute()
    if is_absolute or not path.is_relative_to(module.directory):
        raise_error(
            "E0803",
            f"`{escape_text(name.value)}` is outside the directory of the spec",
            name.span,
            helps=[f"pass it with {option} instead"],
        )
    return path


def find_spec_weights_file(program: Program, *, is_required: bool = False) -> str:
    """Return the path of the weights file that a spec names, or "" if the spec names no file.

    Raise E0802 if the file is missing and `is_required` is true.
    """
    sources = (
        (rule, module)
        for item, module in program.iterate_items(ast.WeightsSection)
        for rule in item.rules
        if isinstance(rule, ast.WeightsFile)
    )
    rule, module = next(sources, (None, None))
    if rule is None or module is None:
        return ""
    name = ast.StringLiteral(rule.path, span=rule.span)
    path = resolve_referenced_file(module, name, "the weights", "--weights")
    if is_required and not path.exists():
        raise_error(
            "E0802",
            f"the weights file `{escape_text(rule.path)}` of the spec does not exist",
            rule.span,
            "file not found next to the spec",
            helps=[
                "train the model and save its weights there (docs/training.md)",
                "or use random weights: --init SEED",
                "or use other weights: --weights FILE or DIR",
            ],
        )
    return str(path)


@dataclass(frozen=True)
class _TransformCall:
    """A transform call in a `load` rule, with methods that evaluate the call's arguments."""

    env: LexicalScope
    call: ast.Call

    @property
    def name(self) -> str:
        """The name of the transform that is called."""
        return self.call.function.path

    @property
    def tensor(self) -> t.Expr:
        """The first argument of the call, as a tensor expression."""
        return _read_load(self.env, self.call.args[0])

    @property
    def tensors(self) -> tuple[t.Expr, ...]:
        """All arguments of the call, or the items of a list argument, as tensor expressions."""
        first = self.call.args[0]
        items = first.items if isinstance(first, ast.ListLiteral) else self.call.args
        return tuple(_read_load(self.env, item) for item in items)

    def find_option(self, name: str) -> Any:
        """Return the value of a named option, or None if the option is absent."""
        for option in self.call.options:
            if option.name == name:
                value = option.value
                if isinstance(value, ast.Name) and value.path in ("half", "interleaved"):
                    return value.path
                result = self.env.evaluate(value)
                return get_first_result(result)
        return None

    def read_value(self, name: str, default: Any = None) -> Any:
        """Read a number or string option. Raise E0522 if the option is required but absent."""
        value = self.find_option(name)
        if value is None and default is None:
            self._raise_missing_option(name)
        return default if value is None else value.number if isinstance(value, Dim) else value

    def read_int(self, name: str, default: int | None = None) -> int:
        """Read an integer option. Raise E0522 if the option's value is not an integer."""
        value = self.read_value(name, default)
        if not isinstance(value, int):
            raise_error("E0522", f"`{name}` of `{self.name}` must be an integer", self.call.span)
        return value

    def read_ints(self, name: str, *, required: bool = False) -> Any:
        """Read a list of integers; return None if the option is absent. Raise E0522 otherwise."""
        value = self.find_option(name)
        if value is None:
            if required:
                self._raise_missing_option(name)
            return None
        items = value if isinstance(value, tuple) else (None,)
        numbers = tuple(d.number if isinstance(d, Dim) else None for d in items)
        if None in numbers:
            title = f"`{name}` of `{self.name}` must be a list of integers"
            raise_error("E0522", title, self.call.span)
        return numbers

    def read_text(self, name: str) -> Any:
        """Read a string option. The pattern of `rearrange` may also be the second argument."""
        args = self.call.args
        if name == "pattern" and len(args) > 1 and isinstance(args[1], ast.StringLiteral):
            return args[1].value
        value = self.read_value(name)
        return value.value if isinstance(value, StringChoice) else value

    def _raise_missing_option(self, name: str) -> NoReturn:
        raise_error("E0522", f"missing argument `{name}` of `{self.name}`", self.call.span)


def _read_load(env: LexicalScope, expr: Any) -> t.Expr:
    """Read a tensor name or a transform in a `load` rule. Raise E0522 for other expressions."""
    match expr:
        case ast.Name(path=name) | ast.StringLiteral(value=name):
            return t.TensorExpr(name)
        case ast.Call(function=function):
            name = function.path
            if name not in WEIGHT_TRANSFORMS:
                choices = f"expected one of {', '.join(WEIGHT_TRANSFORMS)}"
                helps = suggest_similar_name(name, WEIGHT_TRANSFORMS, choices)
                raise_error("E0522", f"unknown transform `{name}`", function.span, helps=helps)
            if not expr.args:
                raise_error("E0522", f"missing tensor name in `{name}`", expr.span)
            return WEIGHT_TRANSFORMS[name](_TransformCall(env, expr))
    raise_error("E0522", "expected the name of a checkpoint tensor", expr.span, "not a tensor name")


def _read_split(call: _TransformCall) -> t.Expr:
    is_list = isinstance(call.find_option("into"), tuple)
    into: int | tuple[int, ...] = call.read_ints("into") if is_list else call.read_int("into")
    count = into if isinstance(into, int) else len(into)
    part = call.read_int("part")
    if not 0 <= part < count:
        title = f"`part` of `split` must be from 0 to {count - 1}, as there are {count} parts"
        raise_error("E0522", title, call.call.span)
    return t.ChunkExpr(call.tensor, call.read_int("axis", 0), part, into)


def _read_rearrange(call: _TransformCall) -> t.Expr:
    names = [option.name for option in call.call.options if option.name != "pattern"]
    sizes = tuple((name, call.read_int(name)) for name in names)
    return t.RearrangeExpr(call.tensor, call.read_text("pattern"), sizes)


def _read_stack(call: _TransformCall) -> t.Expr:
    """Read the expression `stack("experts.{e}.w", e=8)`, in which the placeholder `{e}` expands to
    0..7, or a `stack` with a list of tensors.
    """
    parts = call.tensors
    if not call.call.options:
        return t.StackExpr(parts)
    (name, *other_options) = [option.name for option in call.call.options]
    placeholder, count = "{" + name + "}", call.read_int(name)
    tensor_names = [name for part in parts for name in t.iterate_tensor_names(part)]
    if other_options or len(parts) != 1 or not all(placeholder in name for name in tensor_names):
        title = f"`stack` requires one placeholder, `{placeholder}`, in the tensor name"
        raise_error("E0522", title, call.call.span, helps=['write `stack("w.{e}", e=8)`'])
    if not 1 <= count <= MAX_STACKED:
        title = f"`stack` expects 1 to {MAX_STACKED} tensors, got {count}"
        raise_error("E0522", title, call.call.span)

    def fill_placeholder(number: int) -> t.Expr:
        return t.rename_tensors(parts[0], lambda name: name.replace(placeholder, str(number)))

    return t.StackExpr(tuple(map(fill_placeholder, range(count))))


WEIGHT_TRANSFORMS: Mapping[str, Callable[[_TransformCall], t.Expr]] = {
    "transpose": lambda c: t.TransposeExpr(
        c.tensor, c.read_ints("axes"), c.read_ints("unless") or ()
    ),
    "reshape": lambda c: t.ReshapeExpr(c.tensor, c.read_ints("shape", required=True)),
    "concat": lambda c: t.ConcatExpr(c.tensors, c.read_int("axis", 0)),
    "slice": lambda c: t.SliceExpr(
        c.tensor, c.read_int("axis", 0), c.read_int("start"), c.read_int("stop")
    ),
    "split": _read_split,
    "permute_pairs": lambda c: t.PermuteRopeExpr(c.tensor, c.read_text("to"), c.read_int("heads")),
    "negate": lambda c: t.NegateExpr(c.tensor),
    "cast": lambda c: t.CastExpr(c.tensor, c.read_text("to")),
    "add": lambda c: t.AddScalarExpr(c.tensor, float(c.read_value("number"))),
    "resize_grid": lambda c: t.ResizeGridExpr(
        c.tensor, c.read_int("rows"), c.read_int("columns"), c.read_int("prefix", 0)
    ),
    "first_present": lambda c: t.CoalesceExpr(c.tensors),
    "stack": _read_stack,
    "rearrange": _read_rearrange,
}
"""The transforms of checkpoint tensors that `load` rules may call, keyed by name."""


def check_weight_rules(
    program: Program,
    options: ConfigReadOptions,
    graph: Graph,
    iterate_sibling_graphs: Callable[[], Iterable[Graph]],
) -> None:
    """Raise the errors in the `weights` section that can be detected without reading files.

    A rule that matches no weight of `graph` may apply to another graph. `iterate_sibling_graphs`
    builds the other graphs on demand.
    """
    parameters = {parameter.name: parameter for parameter in list_model_parameters(graph)}
    rules, _ = evaluate_weight_rules(program, options)
    rules = select_graph_weight_rules(
        rules, parameters, lambda: iterate_graph_parameters(iterate_sibling_graphs())
    )
    resolve_weight_ties(parameters, rules)
    reject_unused_load_rules(parameters, rules)
    find_spec_weights_file(program)
    for facts in graph.parameter_facts.values():
        parse_initializer(facts.initializer, facts.span)


def count_untied_parameters(graph: Graph) -> Dim:
    """Return the number of parameters in a graph with `tied_to` set. Count tied weights once."""
    facts = graph.parameter_facts.values()
    return sum_dims(multiply_dims(f.type.shape) for f in facts if not f.tied_to)


def mark_tied_weights(
    program: Program, options: ConfigReadOptions, model: ModelDefinition
) -> ModelDefinition:
    """Return the model with `tied_to` set on each tied parameter according to the first matching
    rule.

    Tie rules for weights of other graphs are ignored.
    """
    rules, _ = evaluate_weight_rules(program, options)
    facts = dict(model.graph.parameter_facts)
    for rule in rules.ties:
        pattern = NamePattern(rule.name)
        for name, fact in facts.items():
            captures = None if fact.tied_to else pattern.get_captures(name)
            source = captures.fill_template(rule.source) if captures is not None else ""
            if source in facts and source != name:
                facts[name] = replace(fact, tied_to=source)
    return replace(model, graph=replace(model.graph, parameter_facts=facts))
