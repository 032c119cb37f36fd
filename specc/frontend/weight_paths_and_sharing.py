"""Resolve weight paths (E0521), check the sharing of weights (E0519, E0526), and stack experts."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from specc.diagnostics.diagnostic import Diagnostic, Label, Source, Span, SpeccError, raise_error
from specc.frontend.spec_values import (
    AttentionFunction,
    StringChoice,
    UnresolvedValueError,
    describe_value,
)
from specc.ir.dim import Dim
from specc.ir.graph import GraphBuilder, Parameter, Value
from specc.ir.types import Type
from specc.syntax import ast
from specc.syntax.dsl.dsl_lexer import SourceFragment
from specc.syntax.dsl.dsl_parser import EXPR, parse_fragment
from specc.weights.parameter_name_patterns import NamePattern

if TYPE_CHECKING:
    from specc.frontend.elaboration_context import LexicalScope


def register_weight_sharing_rules(
    items: Iterable[ast.Item], env: "LexicalScope", *, is_from_used_spec: bool = False
) -> None:
    """Register the `share` rules in `items` whose conditions are true, with paths below the scope
    of `env`. Rules of used specs (`is_from_used_spec`) may be unused, because other specs that use
    the file may need these rules.
    """
    for item in items:
        for rule in item.rules if isinstance(item, ast.WeightsSection) else ():
            if not isinstance(rule, ast.WeightSharingRule):
                continue
            condition = rule.condition
            if condition is None or env.evaluate_value(condition) is True:
                env.context.weights.sharing.add_sharing_rule(
                    rule.name.text, env.scope, is_from_used_spec=is_from_used_spec
                )


MAX_PATH_LENGTH = 10_000
"""The maximum length in characters of a weight path with placeholders."""
PARSE_COST = 20
"""The number of elaboration steps for a placeholder, in addition to one step per character."""
PLACEHOLDER_PATTERN = re.compile(r"\{([^{}]*)\}")
NAMED_PLACEHOLDER_PATTERN = re.compile(r"\{([A-Za-z_][^{}]*)\}")
VALID_PATH = re.compile(r"[^\x00-\x20\x7f{}]*")


def resolve_weight_path(name: ast.WeightPath, env: "LexicalScope") -> str:
    """Replace the placeholders in a weight path. Raise E0521 if the result is not a valid path."""
    path = fill_placeholders(name.text, env, name.span, PLACEHOLDER_PATTERN)
    if not VALID_PATH.fullmatch(path):
        raise_error("E0521", f"`{path}` cannot be the name of a weight", name.span)
    return path


def fill_placeholders(
    text: str,
    env: "LexicalScope",
    span: Span | None,
    pattern: "re.Pattern[str]" = NAMED_PLACEHOLDER_PATTERN,
) -> str:
    """Replace every placeholder `{…}` in a string with its value, i.e. a number, a string or a
    choice. Outside weight paths, a placeholder begins with a letter, and all other braces are
    literal.
    """

    def format_placeholder(match: "re.Match[str]") -> str:
        expression = match.group(1).strip()
        # parsed placeholders are cached, because each iteration of a loop formats the same string
        key = (span, match.group())
        if key not in env.context.weights.placeholders:
            env.context.consume_steps(span, PARSE_COST + len(expression))
            env.context.weights.placeholders[key] = parse_fragment(
                _make_placeholder_fragment(match.group(1), span), EXPR
            )
        value = env.evaluate_value(env.context.weights.placeholders[key])
        # floats are rejected, because their spelling in checkpoint names is unknown
        match value:
            case Dim() if value.number is not None:
                return str(value.number)
            case str(text):
                return text
            case StringChoice(word):
                return word
        if isinstance(value, Dim):
            raise UnresolvedValueError(value.symbols(), span)
        raise_error(
            "E0521",
            f"`{{{expression}}}` in a name is {describe_value(value)}, not an integer or a string",
            span,
        )

    path = pattern.sub(format_placeholder, text) if "{" in text else text
    if len(path) > MAX_PATH_LENGTH:
        title = f"a string of {len(path)} characters; the limit is {MAX_PATH_LENGTH}"
        raise_error("E0521", title, span)
    return path


def _make_placeholder_fragment(expression: str, span: Span | None) -> SourceFragment:
    """Return a source fragment with the expression of a placeholder in the string at `span`."""
    if span is None:
        return SourceFragment.from_source(Source("<weight name>", expression))
    start = span.text.find(f"{{{expression}}}") + 1
    if start > 0:
        return SourceFragment(span.source, expression, span.start + start)
    # in a literal that contains escapes or line breaks, every character gets the span of the whole
    # literal
    offsets = (*[span.start] * len(expression), span.end)
    return SourceFragment(span.source, expression, offsets=offsets)


@dataclass(frozen=True, eq=False, slots=True)
class CallFrame:
    """An element of a call path: a call, a loop iteration or the expansion of a definition.
    `source` is the call, loop or definition, and `scope` is the weight scope that the element
    enters, or "".
    """

    source: "CallPathSource"
    scope: str = ""

    @property
    def span(self) -> Span | None:
        """The span of the source code, or for a loop the span of its iterable."""
        if isinstance(self.source, LOOP_NODES):
            return self.source.iterable.span
        return self.source.span


CallPathSource: TypeAlias = ast.Call | ast.RepeatLoop | ast.ListComprehension | AttentionFunction
"""The source of an element of a call path: a call, a loop or a definition."""

LOOP_NODES = (ast.RepeatLoop, ast.ListComprehension)
CALL_PATH_NODES = (ast.Call, *LOOP_NODES)
CallStack: TypeAlias = tuple[CallFrame, ...]


@dataclass(frozen=True, slots=True)
class ActiveWeightSharingRule:
    """A `share PATH` rule that is in effect. `path` is the path pattern, `scope` is the weight
    scope of the spec file, and `depth` is the length of the call path where the rule was declared.
    `is_from_used_spec` is True if the rule comes from a used spec.
    """

    path: NamePattern
    scope: str = ""
    depth: int = 0
    is_from_used_spec: bool = False

    def is_applicable_to(self, name: str) -> bool:
        """Return True if the rule applies to the weight or scope `name`."""
        if not self.scope:
            return self.path.matches(name)
        return name.startswith(f"{self.scope}.") and self.path.matches(name[len(self.scope) + 1 :])


@dataclass
class WeightSharingTracker:
    """A record of which calls use each weight and which `share` paths are in use."""

    call_path: CallStack = ()
    used_shared_weight_paths: dict[str, bool] = field(default_factory=dict)
    _rules: list[ActiveWeightSharingRule] = field(default_factory=list)
    _first_uses: dict[str, CallStack] = field(default_factory=dict)
    _definition_paths: dict[int, CallStack] = field(default_factory=dict)

    def add_sharing_rule(self, path: str, scope: str, *, is_from_used_spec: bool = False) -> None:
        """Allow calls to share the weights that match `path` below `scope`, until the current call
        or iteration ends. Rules of used specs are not recorded in `used_shared_weight_paths`.
        """
        self._rules.append(
            ActiveWeightSharingRule(
                NamePattern(path), scope, len(self.call_path), is_from_used_spec
            )
        )
        if not self.call_path and not is_from_used_spec:
            self.used_shared_weight_paths[path] = False

    @contextmanager
    def enter_call(self, source: CallPathSource, scope: str = "") -> Iterator[None]:
        """Return a context manager that adds a call or loop iteration to the call path."""
        outer_path, rule_count = self.call_path, len(self._rules)
        self.call_path = (*outer_path, CallFrame(source, scope))
        try:
            yield
        finally:
            self.call_path = outer_path
            del self._rules[rule_count:]

    def record_definition_path(self, definition: AttentionFunction, scope: str) -> None:
        """Record the current call path for the weights of a bound definition."""
        self._definition_paths[id(definition)] = (*self.call_path, CallFrame(definition, scope))

    @contextmanager
    def restore_call_path(self, definition: AttentionFunction) -> Iterator[None]:
        """Return a context manager that restores the call path at which `definition` was bound."""
        outer_path = self.call_path
        if path := self._definition_paths.get(id(definition)):
            self.call_path = (*path[:-1], CallFrame(definition, path[-1].scope))
        try:
            yield
        finally:
            self.call_path = outer_path

    def register_weight(self, name: str) -> None:
        """Register a weight of the current call. Raise E0526 if a `share` rule is missing."""
        call_path, first_use = self.call_path, self._first_uses.setdefault(name, self.call_path)
        divergence = _find_divergence(first_use, call_path)
        if divergence is None:
            return
        # a rule applies to the weight itself, or to a scope that both call paths enter after they
        # diverge
        scopes = _collect_scopes(first_use[divergence:]) & _collect_scopes(
            call_path[divergence:]
        ) | {name}
        # a rule that is declared after the divergence covers only one of the call paths
        rules = [
            r for r in self._rules if r.depth <= divergence and any(map(r.is_applicable_to, scopes))
        ]
        if not rules:
            raise SpeccError(
                explain_unshared_weight(name, first_use[divergence:], call_path[divergence:])
            )
        self.used_shared_weight_paths.update(
            {r.path.text: True for r in rules if not r.depth and not r.is_from_used_spec}
        )


def _find_divergence(first: CallStack, second: CallStack) -> int | None:
    """Return the index at which two call paths diverge, or None if they share a definition."""
    for n, (first_step, second_step) in enumerate(zip(first, second, strict=False)):
        if first_step is not second_step:
            is_same_definition = first_step.source is second_step.source and not isinstance(
                first_step.source, CALL_PATH_NODES
            )
            return None if is_same_definition else n
    return None


def _collect_scopes(path: CallStack) -> set[str]:
    """Return the weight scopes that a call path enters."""
    return {step.scope for step in path} - {""}


def explain_unshared_weight(name: str, first: CallStack, second: CallStack) -> Diagnostic:
    """Return the error E0526 for a weight that is used by two calls. Both call paths start at the
    element at which they diverge.
    """
    first_step, second_step = first[0], second[0]
    share_help = f"to share one set of weights write: {_suggest_share_rule(first, second)}"
    if isinstance(second_step.source, LOOP_NODES) and first_step.source is second_step.source:
        call = next((s for s in second if isinstance(s.source, ast.Call)), second_step)
        primary = Label.from_span(call.span, "each iteration uses the same weights")
        related_labels = Label.tuple_from_span(second_step.span, "this repeats it")
        naming_help = (
            f"give each iteration its own weights: {_suggest_iteration_path(second_step.source)}"
        )
        title = f"all iterations of the loop share the weight `{name}`"
    else:
        primary = Label.from_span(second_step.span, "this call reuses the weights")
        related_labels = Label.tuple_from_span(first_step.span, "they belong to this call")
        naming_help = "give each call its own name: `… @ name`"
        title = f"two calls share the weight `{name}`"
    return Diagnostic("E0526", title, primary, related_labels, helps=(naming_help, share_help))


def _suggest_share_rule(first: CallStack, second: CallStack) -> str:
    """Return a `share` rule for a scope entered by both calls, or for the weight itself."""
    call = next(s for s in second if s.scope or not isinstance(s.source, LOOP_NODES))
    if call.scope not in _collect_scopes(first):
        return "`weights { share name }` next to `@ name`"
    # suggest `*` in place of the layer numbers
    path = ".".join("*" if part.isdigit() else part for part in call.scope.split("."))
    operand = f'"{path}"' if "*" in path else path
    return f"`weights {{ share {operand} }}`"


def _suggest_iteration_path(loop: ast.RepeatLoop | ast.ListComprehension) -> str:
    """Suggest a weight path with the loop variable, which differs between iterations."""
    placeholder = f"{{{loop.variable}}}"
    if isinstance(loop, ast.RepeatLoop):
        return f'`repeat {loop.variable} in … under "layers.{placeholder}" {{ … }}`'
    return f'`@ "name.{placeholder}"`'


def raise_shape_conflict_error(first: Parameter, second: Parameter) -> NoReturn:
    """Raise E0519 for two calls that use the same name for weights of different shapes."""
    raise_error(
        "E0519",
        f"two weights of different shapes have the name `{second.name}`",
        second.span,
        f"{second.type} here",
        related_labels=Label.tuple_from_span(first.span, f"{first.type} here"),
        helps=[
            "give each weight its own name after `@`; calls that share weights need equal sizes"
        ],
    )


PER_EXPERT_INITIALIZERS = {"fan_in": "fan_in_each"}
"""The initializer of a stacked weight, by initializer of one expert's weight. The initializer of
the stacked weight is applied to each expert separately.
"""


@dataclass
class ExpertWeights:
    """The weights of the experts that are being elaborated. Each name maps to the weight of one
    expert, and to the stacked weight of all experts.
    """

    expert_count: Dim
    expert_values: dict[str, Value] = field(default_factory=dict)
    stacked_values: dict[str, Value] = field(default_factory=dict)


def get_stacked_weight_shape(
    stacks: Sequence[ExpertWeights], shape: Sequence[Dim]
) -> tuple[Dim, ...]:
    """Return the stored shape of an expert weight, with a leading axis per expert stack."""
    return (*(s.expert_count for s in stacks), *shape)


def get_expert_weight(
    builder: GraphBuilder, stacks: Sequence[ExpertWeights], parameter: Parameter
) -> Value:
    """Return the weight of one expert of the innermost stack. Add the stacked weight of all experts
    to the graph. If there is no stack of experts, add and return an ordinary parameter.
    """
    if not stacks:
        return builder.add_parameter(parameter)
    *outer_stacks, stack = stacks
    if parameter.name not in stack.expert_values:
        stack.expert_values[parameter.name] = Value(parameter.type)
        stacked_parameter = stack_expert_parameter(parameter, stack.expert_count)
        stack.stacked_values[parameter.name] = get_expert_weight(
            builder, outer_stacks, stacked_parameter
        )
    return stack.expert_values[parameter.name]


def stack_expert_parameter(parameter: Parameter, expert_count: Dim) -> Parameter:
    """Return a parameter that stacks the weights of all experts along a new first axis."""
    name, bracket, rest = parameter.initializer.partition("(")
    return replace(
        parameter,
        type=Type(parameter.type.dtype, (expert_count, *parameter.type.shape)),
        initializer=f"{PER_EXPERT_INITIALIZERS.get(name, name)}{bracket}{rest}",
    )
