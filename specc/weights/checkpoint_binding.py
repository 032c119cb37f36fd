"""Bind all parameters to checkpoint tensors. Each tensor must be read or match an `ignore` rule."""

import hashlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TypeAlias

from specc.diagnostics.diagnostic import Diagnostic, Span, SpeccError
from specc.io.safe_read import escape_text
from specc.weights import binding_errors
from specc.weights.binding_errors import MissingParameter
from specc.weights.checkpoint_files import Checkpoint
from specc.weights.checkpoint_weight_streaming import BoundParameter, CheckpointWeights
from specc.weights.expression_evaluation import infer_expression_dtype, infer_expression_shape
from specc.weights.formats.safetensors_header import CONVERTIBLE_FLOATS
from specc.weights.parameter_name_patterns import (
    NamePattern,
    ParameterNaming,
    infer_parameter_naming,
    split_name_at_numbers,
)
from specc.weights.parameter_sources import RandomInitWeights
from specc.weights.weight_expressions import (
    CoalesceExpr,
    Expr,
    TensorExpr,
    WeightExpressionError,
    contains_coalesce,
    iterate_tensor_names,
    rename_tensors,
    resolve_coalesce,
)
from specc.weights.weight_rules_and_initializers import (
    IgnoreRule,
    LoadRule,
    ModelParameter,
    ParameterMap,
    WeightRules,
    reject_unused_load_rules,
    resolve_weight_ties,
)

_ExpressionAndRule: TypeAlias = tuple[Expr, Span | None]
"""The expression that computes a parameter, with the tensor names of the spec, and the span of the
parameter's `load` rule.
"""


@dataclass(frozen=True, slots=True)
class TaskHeadInitialization:
    """Options of the random initialization of a new task head.

    If `seed` is None, no parameter is initialized. `initializers` maps parameters to the text of
    their initializers. `find_base_parameters` returns the names of the base model's parameters,
    which are never initialized.
    """

    seed: int | None
    initializers: Mapping[str, str]
    find_base_parameters: Callable[[], Set[str]]


def bind_parameters(
    parameters: Sequence[ModelParameter],
    rules: WeightRules,
    checkpoint: Checkpoint,
    initialization: TaskHeadInitialization | None = None,
) -> CheckpointWeights:
    """Bind every parameter to an expression over checkpoint tensors, according to the spec's weight
    rules. `load` rules are skipped if, according to the file metadata, the file has the tensor
    names and shapes of the spec.

    If `initialization` has a seed, parameters of a new task head are initialized randomly and
    listed in a warning. Raise all errors at once: E0501, E0503, E0505, E0508, E0510, E0511 or
    E0515.
    """
    by_name = {w.name: w for w in parameters}
    assert len(by_name) == len(parameters), "parameter names are unique"
    # Map each parameter to an expression, first with the spec's tensor names, then with the file's.
    ties = resolve_weight_ties(by_name, rules)
    loads = () if checkpoint.has_spec_layout else rules.loads
    sources = {w.name: _find_rule(w.name, loads) for w in parameters}
    reject_unused_load_rules(by_name, rules)
    naming = _find_naming(sources, ties, rules.used_spec_paths, checkpoint)
    exprs = {name: _resolve_names(expr, naming, checkpoint) for name, (expr, _) in sources.items()}
    # Find the parameters in the file, and the missing parameters that belong to a new task head.
    bound, missing = _resolve_parameters(by_name, exprs, ties, checkpoint)
    head_weights, reasons = _initialize_head(initialization, bound, missing, exprs, checkpoint)
    initialized = head_weights.parameters if head_weights is not None else {}
    bound |= {name: BoundParameter(w, None, None, w.dtype) for name, w in initialized.items()}
    uninitialized = [(w, tensor) for w, tensor in missing if w.name not in initialized]
    # Report all errors before reading data, because `_choose_dtypes` reads some tensors.
    bound_exprs = {name: b.expr or exprs[name] for name, b in bound.items()}
    mismatches = _list_mismatches(by_name, sources, bound_exprs, checkpoint)
    ignored = _collect_ignored_tensors(rules.ignores, naming, checkpoint)
    unused = _list_unused(exprs, ignored, checkpoint)
    errors = binding_errors.make_weight_binding_errors(
        checkpoint, naming, len(by_name), uninitialized, mismatches, unused, reasons=reasons
    )
    if errors:
        raise SpeccError(*errors)
    bound_parameters, warnings = _choose_dtypes(bound, exprs, rules, checkpoint)
    if initialization is not None and head_weights is not None:
        warnings.append(binding_errors.make_random_init_warning(head_weights, checkpoint.path))
    return CheckpointWeights(
        checkpoint=checkpoint,
        bound_parameters=bound_parameters,
        naming=naming,
        ignored_tensors=tuple(sorted(ignored)),
        warnings=tuple(warnings),
        head_weights=head_weights,
    )


def _initialize_head(
    initialization: TaskHeadInitialization | None,
    bound_parameters: Mapping[str, BoundParameter],
    missing: Sequence[MissingParameter],
    exprs: Mapping[str, Expr],
    checkpoint: Checkpoint,
) -> tuple[RandomInitWeights | None, dict[str, str] | None]:
    """Return the values of the missing parameters that form a new task head. Also map every other
    missing parameter to the reason why it does not belong to the head. The first result is None if
    no parameter belongs to a new task head or if there is no seed. Both results are None if
    initialization was not requested.
    """
    if initialization is None:
        return None, None
    present = [b.parameter for b in bound_parameters.values() if b.tied_to is None]
    reasons = _explain_uninitialized_parameters(
        initialization, missing, present, exprs, checkpoint.tensors.keys()
    )
    initialized = {w.name: w for w, _ in missing if w.name not in reasons}
    if initialization.seed is None or not initialized:
        return None, reasons
    return RandomInitWeights(
        initialization.seed,
        initialized,
        {name: initialization.initializers[name] for name in initialized},
    ), reasons


def _explain_uninitialized_parameters(
    initialization: TaskHeadInitialization,
    missing: Sequence[MissingParameter],
    bound_parameters: Sequence[ModelParameter],
    exprs: Mapping[str, Expr],
    present: Set[str],
) -> dict[str, str]:
    """Map each missing parameter that is not part of a new task head to the reason.
    `bound_parameters` are the parameters that the checkpoint contains. `present` are the names of
    the checkpoint's tensors. `exprs` maps parameters to their expressions.
    """
    names_by_skeleton = {split_name_at_numbers(w.name): w.name for w in bound_parameters}
    names_by_call = {_get_call_key(w): w.name for w in bound_parameters}
    # Finding the base model elaborates all graphs, so it is skipped if no parameter is missing.
    base_parameters = initialization.find_base_parameters() if missing else frozenset()
    reasons: dict[str, str] = {}
    for parameter, _ in missing:
        present_tensors = [n for n in iterate_tensor_names(exprs[parameter.name]) if n in present]
        similar_name = names_by_skeleton.get(split_name_at_numbers(parameter.name))
        sibling_name = names_by_call.get(_get_call_key(parameter))
        # Reasons that name an existing tensor come first, because such reasons are the most
        # specific.
        if not bound_parameters:
            reason = "no weight of the model is in the checkpoint"
        elif present_tensors:
            reason = f"a part of it, `{escape_text(present_tensors[0])}`, is in the checkpoint"
        elif similar_name:
            reason = (
                f"the checkpoint has the weight of another layer, `{escape_text(similar_name)}`"
            )
        elif sibling_name:
            reason = (
                f"the checkpoint has another weight of the same call, `{escape_text(sibling_name)}`"
            )
        elif parameter.name in base_parameters:
            reason = "it belongs to the base model, which every graph of the spec has"
        else:
            continue
        reasons[parameter.name] = reason
    return reasons


def _get_call_key(parameter: ModelParameter) -> tuple[str, object]:
    """Return the scope and source location of the call that declares a parameter, as a key."""
    return parameter.name.rpartition(".")[0], parameter.span


def _find_naming(
    sources: Mapping[str, _ExpressionAndRule],
    ties: Mapping[str, str],
    parts: Sequence[str],
    checkpoint: Checkpoint,
) -> ParameterNaming:
    """Infer the mapping from the spec's parameter names to the file's tensor names. Tied parameters
    are ignored, because the file may lack tensors for them.
    """
    exprs = [expr for name, (expr, _) in sources.items() if name not in ties]
    # names without alternatives are more reliable, because only one of the names in a
    # `first_present` rule is in the file
    unambiguous = [expr for expr in exprs if not contains_coalesce(expr)]
    names = [name for expr in unambiguous or exprs for name in iterate_tensor_names(expr)]
    return infer_parameter_naming(names, checkpoint.tensors.keys(), checkpoint.path, parts)


def _list_unused(exprs: Mapping[str, Expr], ignored: Set[str], checkpoint: Checkpoint) -> list[str]:
    """Return the names of the tensors that no parameter reads and that no `ignore` rule matches.

    Stored copies of tied parameters are not unused tensors, nor is `num_batches_tracked` next to a
    running mean. Empty tensors, e.g. for zero register tokens, are skipped.
    """
    used_names = {n for expr in exprs.values() for n in iterate_tensor_names(expr)}
    means = {n for n in used_names if n.endswith("running_mean")}
    batch_counts = {n.removesuffix("running_mean") + "num_batches_tracked" for n in means}
    empty_tensors = {n for n, tensor in checkpoint.tensors.items() if 0 in tensor.shape}
    known_names = used_names | ignored | batch_counts | empty_tensors | checkpoint.optional_tensors
    return [n for n in checkpoint.tensors if n not in known_names]


def _resolve_names(expr: Expr, naming: ParameterNaming, checkpoint: Checkpoint) -> Expr:
    """Replace tensor names in an expression with names in the file, and resolve alternatives."""
    present = checkpoint.tensors.keys()
    renamed = rename_tensors(expr, lambda n: naming.resolve_name(n, present))
    return resolve_coalesce(renamed, present.__contains__)


def _find_rule(name: str, loads: Sequence[LoadRule]) -> _ExpressionAndRule:
    """Return the expression in the `load` rule for a parameter. A rule with the exact name takes
    precedence over rules with a pattern. If several patterns match, the first rule whose tensors
    are in the file is used. If no rule matches, the parameter is read from the tensor of the same
    name.
    """
    for rule in loads:
        if rule.name == name:
            return rule.value, rule.span
    matching = [(r, NamePattern(r.name).get_captures(name)) for r in loads]
    options = [(rename_tensors(r.value, c.fill_template), r.span) for r, c in matching if c]
    if len(options) < 2:
        return options[0] if options else (TensorExpr(name), None)
    return CoalesceExpr(tuple(expr for expr, _ in options)), options[0][1]


def _resolve_parameters(
    parameters: ParameterMap,
    exprs: Mapping[str, Expr],
    ties: Mapping[str, str],
    checkpoint: Checkpoint,
) -> tuple[dict[str, BoundParameter], list[MissingParameter]]:
    """Resolve each parameter to an expression over tensors. Return the bound parameters, and for
    each parameter that cannot be bound, the name of a missing tensor.

    If the file stores only one of several tied parameters, the source parameter reads that tensor.
    """
    present = checkpoint.tensors.keys()

    def find_missing_tensor(name: str) -> str | None:
        return next((n for n in iterate_tensor_names(exprs[name]) if n not in present), None)

    tied_names: dict[str, list[str]] = {}
    for name, root in ties.items():
        tied_names.setdefault(root, []).append(name)
    bound: dict[str, BoundParameter] = {}
    missing: list[MissingParameter] = []
    for name, w in parameters.items():
        if name in ties:
            bound[name] = BoundParameter(w, None, ties[name], "")
            continue
        stored = (n for n in (name, *tied_names.get(name, ())) if find_missing_tensor(n) is None)
        source = next(stored, None)
        if source is None:
            missing.append((w, find_missing_tensor(name) or name))
        else:
            bound[name] = BoundParameter(w, exprs[source], None, "")
    return bound, missing


def _list_mismatches(
    parameters: ParameterMap,
    sources: Mapping[str, _ExpressionAndRule],
    exprs: Mapping[str, Expr],
    checkpoint: Checkpoint,
) -> list[binding_errors.TensorMismatch]:
    """Return the parameters whose tensors are all present but have an unexpected shape or dtype."""
    mismatches: list[binding_errors.TensorMismatch] = []
    for name, expr in exprs.items():
        if not _has_tensor(checkpoint, expr):
            continue
        parameter, (_, span) = parameters[name], sources[name]
        names = tuple(iterate_tensor_names(expr))
        entries = {n: checkpoint.tensors[n] for n in names}
        try:
            shape = infer_expression_shape(expr, {n: e.shape for n, e in entries.items()})
            dtype = infer_expression_dtype(expr, {n: e.dtype for n, e in entries.items()})
        except WeightExpressionError as error:
            reason = str(error)
            mismatches.append(binding_errors.TensorMismatch(parameter, names, span, reason=reason))
            continue
        if shape != parameter.shape or get_dtype_family(dtype) != get_dtype_family(parameter.dtype):
            mismatches.append(binding_errors.TensorMismatch(parameter, names, span, shape, dtype))
    return mismatches


def get_dtype_family(dtype: str) -> str:
    """Return the family of `dtype`: floats or integers. Dtypes of one family can be converted to
    each other. A dtype that is neither float nor integer forms a separate family.
    """
    if dtype in CONVERTIBLE_FLOATS:
        return "float"
    return "int" if dtype[0] in "iu" else dtype


def _collect_ignored_tensors(
    rules: Sequence[IgnoreRule], naming: ParameterNaming, checkpoint: Checkpoint
) -> set[str]:
    """Return the checkpoint tensors that match an `ignore` rule, either by tensor name or by the
    name of a possibly corresponding parameter.
    """
    patterns = [NamePattern(r.pattern) for r in rules]

    def is_named(name: str) -> bool:
        spellings = naming.list_candidate_names(name)
        return any(p.matches(spelling) for p in patterns for spelling in spellings)

    return {name for name in checkpoint.tensors if is_named(name)}


def _choose_dtypes(
    bound_parameters: Mapping[str, BoundParameter],
    exprs: Mapping[str, Expr],
    rules: WeightRules,
    checkpoint: Checkpoint,
) -> tuple[dict[str, BoundParameter], list[Diagnostic]]:
    """Return the bound parameters with their dtypes, and warnings. If the stored values of a tied
    parameter differ from those of its source, the parameter keeps its stored values and a warning
    is added.
    """
    dtypes = {n: e.dtype for n, e in checkpoint.tensors.items()}
    bound = {
        name: b if b.expr is None else replace(b, dtype=infer_expression_dtype(b.expr, dtypes))
        for name, b in bound_parameters.items()
    }
    warnings: list[Diagnostic] = []
    for name, b in bound_parameters.items():
        expr = exprs[name]
        # Skip tied parameters without a separate copy in the file.
        if b.tied_to is None or expr == bound_parameters[b.tied_to].expr:
            continue
        if not _has_tensor(checkpoint, expr):
            continue
        untied = BoundParameter(b.parameter, expr, None, infer_expression_dtype(expr, dtypes))
        weights = CheckpointWeights(checkpoint=checkpoint, bound_parameters={**bound, name: untied})
        if not _have_equal_values(weights, name, b.tied_to):
            bound[name] = untied
            rule_spans = [r.span for r in rules.ties if NamePattern(r.name).matches(name)]
            warnings.append(
                binding_errors.make_tied_weight_mismatch_warning(
                    b.parameter, b.tied_to, rule_spans[0], checkpoint
                )
            )
    return bound, warnings


def _has_tensor(checkpoint: Checkpoint, expr: Expr) -> bool:
    """Return True if the file contains every tensor that an expression reads."""
    return all(n in checkpoint.tensors for n in iterate_tensor_names(expr))


def _have_equal_values(weights: CheckpointWeights, first: str, second: str) -> bool:
    """Return True if two parameters have the same dtype and values."""
    dtype = weights.get_stored_dtype(first)
    if dtype != weights.get_stored_dtype(second):
        return False

    def hash_values(name: str) -> bytes:
        digest = hashlib.sha256()
        for chunk in weights.iterate_chunks(name, dtype):
            digest.update(chunk)
        return digest.digest()

    return hash_values(first) == hash_values(second)
