"""Compare the configs, blocks, ops, masks, weights and costs of two architectures."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from specc.analysis.mask_bands import find_band_interval
from specc.analysis.model_cost import count_multiply_adds, format_dim_formula
from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.driver.weights_section_and_load_transforms import count_untied_parameters
from specc.ir import ops
from specc.ir.dim import Dim, sum_dims
from specc.ir.graph import Graph, Node, Value
from specc.ir.ir_printer_and_lexer import format_ir
from specc.transforms.transposed_weights_and_norm_folding import restore_weight_layout
from specc.visualize.block_dataflow import VIEW_OPERATIONS, get_operation_label, is_float_value
from specc.visualize.scope_summary import format_number_ranges

MIN_COMMON_SHARE = 0.2
"""The minimum fraction of shared scopes for a comparison of two architectures block by block."""

MAX_LINES = 400
"""The maximum number of printed changes of one kind. If there are more changes, only the number of
remaining changes is printed.
"""

INTEGER_PATTERN = re.compile(r"(?<![^.])\d+(?![^.])")
"""The pattern of an integer component in a scope path."""


@immutable_dataclass(kw_only=True)
class Architecture:
    """The name, graph and checkpoint config of a model."""

    name: str
    graph: Graph
    config: Mapping[str, object] = field(default_factory=dict)


@immutable_dataclass(slots=False, kw_only=True)
class ArchitectureChange:
    """A difference between two architectures. It consists of the kind of the difference, the path
    of the changed block, and the change.
    """

    kind: str
    path: str
    change: str


@immutable_dataclass(kw_only=True)
class ArchitectureDiff:
    """All differences between two architectures, A and B. `reason` says why blocks are not
    compared, and is "" if they are compared.
    """

    changes: tuple[ArchitectureChange, ...] = ()
    reason: str = ""

    @property
    def is_empty(self) -> bool:
        """Return True if the architectures do not differ."""
        return not self.changes and not self.reason


def diff_architectures(a: Architecture, b: Architecture) -> ArchitectureDiff:
    """Return the differences between two architectures: configs, inputs, results, scopes, weight
    counts and costs. If only the order of operations differs, return the first IR line that
    differs.
    """
    a, b = (replace(side, graph=restore_weight_layout(side.graph)) for side in (a, b))
    if _format_graph(a.graph) == _format_graph(b.graph):
        return ArchitectureDiff()
    facts_a, facts_b = (_map_scope_facts(side.graph) for side in (a, b))
    common = facts_a.keys() & facts_b.keys()
    configs = (dict(_flatten_config(side.config)) for side in (a, b))
    changes = [
        *_diff_texts("config", *configs),
        *_diff_texts("input", *(_format_types(side.graph.inputs) for side in (a, b))),
        *_diff_texts("result", *(_format_types(side.graph.outputs) for side in (a, b))),
    ]
    total_changes = [*_diff_texts("total", *(_format_totals(side.graph) for side in (a, b)))]
    if len(common) < MIN_COMMON_SHARE * len(facts_a.keys() | facts_b.keys()):
        reason = (
            f"unrelated models: only {len(common)} paths are common to the {len(facts_a)} blocks "
            f"of {a.name} and the {len(facts_b)} blocks of {b.name}"
        )
        return ArchitectureDiff(changes=(*changes, *total_changes), reason=reason)
    changes += _fold_changes(
        "removed", ((p, "") for p in _iterate_outermost_scopes(facts_a, facts_b))
    )
    changes += _fold_changes(
        "added", ((p, "") for p in _iterate_outermost_scopes(facts_b, facts_a))
    )
    changes += _fold_changes("block", _diff_scope(facts_a, facts_b))
    changes += total_changes
    return ArchitectureDiff(changes=tuple(changes or _iterate_first_difference(a.graph, b.graph)))


def _format_graph(graph: Graph) -> str:
    """Format the IR of a graph without the name of the graph."""
    return format_ir(graph).split("\n", 1)[1]


def _diff_texts(
    kind: str, old: Mapping[str, str], new: Mapping[str, str]
) -> Iterator[ArchitectureChange]:
    """Yield the entries that differ between two architectures."""
    for name in {**old, **new}:
        old_text, new_text = old.get(name, "–"), new.get(name, "–")
        if old_text != new_text:
            yield ArchitectureChange(kind=kind, path=name, change=f"{old_text} → {new_text}")


def _flatten_config(config: Mapping[str, object], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted path and the formatted value of each config field."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _flatten_config(value, f"{path}{key}.")
        else:
            text = "none" if value is None else str(value)
            yield f"{path}{key}", text.lower() if isinstance(value, bool) else text


def _format_types(values: Mapping[str, Value]) -> dict[str, str]:
    """Format the types of inputs or outputs, each with its name."""
    return {name: str(value.type) for name, value in values.items()}


ScopeFacts = tuple[tuple[str, str], ...]
"""A scope's operations and parameters as (name, details) pairs. Nested scopes are excluded."""


def _map_scope_facts(graph: Graph) -> dict[str, ScopeFacts]:
    """Return the operations and weights of every scope, without those of nested scopes."""
    facts_by_scope: dict[str, list[tuple[str, str]]] = {}
    for node, results in graph.nodes:
        facts = facts_by_scope.setdefault(graph.get_scope(node), [])
        # skip the ops that compute masks, because a mask is described together with the attention
        # that uses it
        if not isinstance(node.op, VIEW_OPERATIONS) and is_float_value(results[0]):
            facts += _describe_operation(node)
    for name, parameter in graph.parameter_facts.items():
        scope, _, leaf = name.rpartition(".")
        shape = " × ".join(format_dim_formula(d, {}) for d in parameter.type.shape)
        facts_by_scope.setdefault(scope, []).append((leaf, f"[{shape}]"))
    return {scope: tuple(facts) for scope, facts in facts_by_scope.items()}


def _describe_operation(node: Node) -> Iterator[tuple[str, str]]:
    """Yield the name and attributes of an operation. For attention, also yield the number of heads
    and the visible keys.
    """
    attributes = {
        name: value
        for name, value in node.op.get_attributes().items()
        if isinstance(value, bool | int | float | str | Dim)
    }
    if isinstance(node.op, ops.Arith | ops.Reduce):
        attributes.pop("fn")  # `fn` is part of the label of the op
    if isinstance(node.op, ops.Pointwise):
        yield "activation", node.op.fn
        return
    yield (
        get_operation_label(node),
        ", ".join(f"{n}={_format_value(v)}" for n, v in attributes.items()),
    )
    if isinstance(node.op, ops.Attend):
        query_shape, key_shape = node.op.query(node).type.shape, node.op.key(node).type.shape
        yield "heads", _format_head_count(query_shape[1], key_shape[1])
        yield "attends to", describe_attended_keys(node)


def _format_head_count(query_heads: Dim, key_heads: Dim) -> str:
    """Format the number of attention heads, as in `32 in 8 groups` for grouped-query attention."""
    groups = "" if query_heads == key_heads else f" in {format_dim_formula(key_heads, {})} groups"
    return f"{format_dim_formula(query_heads, {})}{groups}"


def _format_value(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def describe_attended_keys(node: Node) -> str:
    """Describe the keys to which a query attends, relative to the position of the query, as in
    `itself and 127 positions before`.
    """
    assert isinstance(node.op, ops.Attend)
    mask = node.op.mask(node)
    if mask is None:
        return "all positions"
    interval = find_band_interval(mask, 2, 3)
    if interval.is_empty:
        return "no positions"
    preceding = (
        "all positions before"
        if interval.high == math.inf
        else f"{interval.high:.0f} positions before"
    )
    following = (
        "all positions after"
        if interval.low == -math.inf
        else f"{-interval.low:.0f} positions after"
    )
    if interval.low == -math.inf and interval.high == math.inf:
        return "all positions visible in a mask"
    return f"itself and {preceding}" if interval.low == 0 else f"{preceding} and {following}"


def _iterate_outermost_scopes(
    left: Mapping[str, ScopeFacts], right: Mapping[str, ScopeFacts]
) -> Iterator[str]:
    """Yield the outermost scopes that are in `left` but not in `right`."""
    other_paths = {path for scope in right for path in _iterate_enclosing_scopes(scope)}
    outermost: dict[str, None] = {}
    for scope in left:
        outermost_scope = next(
            (path for path in _iterate_enclosing_scopes(scope) if path not in other_paths), ""
        )
        if scope and outermost_scope:
            outermost[outermost_scope] = None
    yield from outermost


def _iterate_enclosing_scopes(scope: str) -> Iterator[str]:
    """Yield a scope and its enclosing scopes, outermost first, such as `h`, `h.0`, `h.0.attn`."""
    parts = scope.split(".")
    yield from (".".join(parts[:n]) for n in range(1, len(parts) + 1))


def _diff_scope(
    left: Mapping[str, ScopeFacts], right: Mapping[str, ScopeFacts]
) -> Iterator[tuple[str, str]]:
    """For each scope that both graphs have, yield the path of each change and the change."""
    for scope, facts in left.items():
        for change in _pair_facts(facts, right.get(scope, facts)):
            yield scope or "(outside blocks)", change


def _pair_facts(left: ScopeFacts, right: ScopeFacts) -> Iterator[str]:
    """Yield the changes of one scope. Operations with the same name are paired in order."""
    names = dict.fromkeys(name for name, _ in (*left, *right))
    for name in names:
        old_details, new_details = ([d for n, d in facts if n == name] for facts in (left, right))
        yield from _pair_details(name, old_details, new_details)


def _pair_details(
    name: str, old_details: Sequence[str], new_details: Sequence[str]
) -> Iterator[str]:
    """Yield the changes of the operations or parameters with the name `name` in one scope."""
    common_count = min(len(old_details), len(new_details))
    for old, new in zip(old_details[:common_count], new_details[:common_count], strict=True):
        if old != new:
            yield f"{name} {_diff_details(old, new)}"
    yield from (f"{name} {d} → –".replace("  ", " ") for d in old_details[common_count:])
    yield from (f"– → {name} {d}".rstrip() for d in new_details[common_count:])


def _diff_details(old: str, new: str) -> str:
    """Format the attributes that differ between two texts of the form `a=1, b=2`."""
    old_attributes, new_attributes = (
        dict(attribute.partition("=")[::2] for attribute in text.split(", ")) for text in (old, new)
    )
    if "=" not in old or old_attributes.keys() != new_attributes.keys():
        return f"{old} → {new}"
    changes = [
        f"{n} {old_attributes[n]} → {new_attributes[n]}"
        for n in old_attributes
        if old_attributes[n] != new_attributes[n]
    ]
    return ", ".join(changes)


def _fold_changes(kind: str, pairs: Iterable[tuple[str, str]]) -> list[ArchitectureChange]:
    """Merge equal changes of scopes whose paths differ only in one number."""
    paths_by_change: dict[tuple[str, str], list[str]] = {}
    for path, change in pairs:
        paths = paths_by_change.setdefault((INTEGER_PATTERN.sub("#", path), change), [])
        # a change that occurs several times in a block is reported only once
        paths += [path] if path not in paths else []
    folded = [
        ArchitectureChange(kind=kind, path=path, change=change)
        for (_, change), paths in sorted(
            paths_by_change.items(), key=lambda item: _get_change_sort_key(item[1][0])
        )
        for path in _join_paths(paths)
    ]
    if len(folded) > MAX_LINES:
        omitted = ArchitectureChange(
            kind=kind, path="…", change=f"and {len(folded) - MAX_LINES} more"
        )
        return [*folded[:MAX_LINES], omitted]
    return folded


def _get_change_sort_key(path: str) -> list[tuple[int, str]]:
    """Return a sort key that orders paths by name, and numbers in names by value."""
    return [(int(p) if p.isdecimal() else 0, p) for p in path.split(".")]


def _join_paths(paths: Sequence[str]) -> list[str]:
    """Join paths that differ only in one number into one path, such as `h.0 … 11.attn`. Return all
    other paths unchanged.
    """
    numbers = [[int(n) for n in INTEGER_PATTERN.findall(path)] for path in paths]
    if len(paths) < 2 or any(len(n) != 1 for n in numbers):
        return sorted(paths, key=_get_change_sort_key)
    text = format_number_ranges(sorted(n for (n,) in numbers))
    return [INTEGER_PATTERN.sub(lambda _: text, paths[0])]


def _format_totals(graph: Graph) -> dict[str, str]:
    """Format the total parameter count and the total cost of a graph."""
    multiply_adds = sum_dims(count_multiply_adds(node) for node, _ in graph.nodes)
    totals = {"weights": count_untied_parameters(graph), "multiply-adds": multiply_adds}
    return {name: format_dim_formula(count, {}) for name, count in totals.items()}


def _iterate_first_difference(a: Graph, b: Graph) -> Iterator[ArchitectureChange]:
    """Yield the first line that differs between the IR texts of two graphs."""
    for old, new in zip(_format_graph(a).split("\n"), _format_graph(b).split("\n"), strict=False):
        if old != new:
            change = f"{old.strip()} → {new.strip()}"
            yield ArchitectureChange(kind="wiring", path="first", change=change)
            return
    yield ArchitectureChange(kind="wiring", path="length", change="one graph has more operations")


def format_architecture_diff(a: Architecture, b: Architecture, diff: ArchitectureDiff) -> list[str]:
    """Format the differences of two architectures as lines of aligned columns."""
    if diff.is_empty:
        return [f"{a.name} and {b.name} are the same architecture"]
    header = [f"{a.name} → {b.name}"]
    if diff.reason:
        header.append(diff.reason)
    kind_width = max((len(c.kind) for c in diff.changes), default=0)
    path_width = min(48, max((len(c.path) for c in diff.changes), default=0))
    lines = [
        f"{c.kind:<{kind_width}}  {c.path:<{path_width}}  {c.change}".rstrip() for c in diff.changes
    ]
    return [*header, *lines]
