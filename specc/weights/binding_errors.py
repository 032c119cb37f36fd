"""Create errors and warnings for parameters that do not match the checkpoint's tensors."""

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TypeAlias, TypeVar

from specc.diagnostics.diagnostic import Diagnostic, Label, Span
from specc.diagnostics.suggest import format_suggestion
from specc.io.safe_read import escape_text
from specc.weights.checkpoint_files import Checkpoint
from specc.weights.parameter_name_patterns import (
    ParameterNaming,
    find_nearest_name,
    format_name_groups,
    group_parameter_names,
    infer_name_patterns,
    replace_numbers_with_placeholders,
    split_name_at_numbers,
)
from specc.weights.parameter_sources import RandomInitWeights
from specc.weights.weight_expressions import Shape
from specc.weights.weight_rules_and_initializers import ModelParameter

MAX_ERRORS = 20
"""Maximum number of binding errors that are reported for one checkpoint."""
MAX_SIMILAR_ERRORS = 3
"""Maximum number of binding errors with the same code and help."""

T = TypeVar("T")
MissingParameter: TypeAlias = tuple[ModelParameter, str]
"""A parameter that cannot be loaded, and the name of a tensor that the checkpoint lacks."""


@dataclass(frozen=True, slots=True)
class TensorMismatch:
    """A parameter whose tensors have an unexpected shape or dtype, or whose weight expression
    cannot be evaluated. `reason` is the evaluation error, or "" if there is none.
    """

    parameter: ModelParameter
    tensors: tuple[str, ...]
    rule_span: Span | None
    shape: Shape = ()
    dtype: str = ""
    reason: str = ""


def make_weight_binding_errors(
    checkpoint: Checkpoint,
    naming: ParameterNaming,
    parameter_count: int,
    missing: Sequence[MissingParameter],
    mismatches: Sequence[TensorMismatch],
    unused: Sequence[str],
    reasons: Mapping[str, str] | None = None,
) -> list[Diagnostic]:
    """Return at most `MAX_ERRORS` errors for missing parameters, mismatched tensors and unused
    tensors. Parameters whose names differ only in numbers share one error.

    A tensor that is suggested for a missing parameter is not also reported as unused. `reasons`
    maps each missing parameter to the reason why it is not part of a new task head. `reasons` is
    None if the caller did not request the initialization of a new task head.
    """
    if missing and len(missing) == parameter_count:
        return [_make_foreign_checkpoint_error(checkpoint, missing, unused)]
    errors: list[Diagnostic] = []
    suggested_tensors: set[str] = set()
    for similar_parameters in _group_by_key(missing, lambda m: split_name_at_numbers(m[0].name)):
        diagnostic, suggested = _make_missing_tensor_error(
            checkpoint, naming, similar_parameters, unused
        )
        if reasons is not None:
            diagnostic = _add_reason(diagnostic, reasons.get(similar_parameters[0][0].name))
        errors.append(diagnostic)
        suggested_tensors |= suggested
    for group in _group_by_key(
        mismatches, lambda m: (split_name_at_numbers(m.parameter.name), m.shape, m.dtype, m.reason)
    ):
        errors.append(_make_mismatch_error(checkpoint, group))
    if unused_names := [n for n in unused if n not in suggested_tensors]:
        errors.append(_make_unused_tensor_error(checkpoint, unused_names))
    groups = _group_by_key(errors, lambda e: (e.code, e.helps))
    return _limit_errors([e for g in groups for e in _limit_errors(g, MAX_SIMILAR_ERRORS)])


def _limit_errors(errors: list[Diagnostic], limit: int = MAX_ERRORS) -> list[Diagnostic]:
    """Return the first errors, the last of which has a note with the number of other errors."""
    if len(errors) <= limit:
        return errors
    *first_errors, last = errors[:limit]
    note = f"not shown: {len(errors) - limit} more like these"
    return [*first_errors, replace(last, notes=(*last.notes, note))]


def _add_reason(diagnostic: Diagnostic, reason: str | None) -> Diagnostic:
    """Add a note with `reason`, the reason why a missing parameter is not part of a new task head.
    If `reason` is empty, add a help text on how to initialize the head.
    """
    if reason:
        note = f"it is not initialized, because it is not part of a new head: {reason}"
        return replace(diagnostic, notes=(*diagnostic.notes, note))
    help = "if it belongs to a new task head, initialize it: `--init-missing 0`"
    return replace(diagnostic, helps=(*diagnostic.helps, help))


def make_tied_weight_mismatch_warning(
    parameter: ModelParameter, source: str, rule_span: Span | None, checkpoint: Checkpoint
) -> Diagnostic:
    """Return the warning W0504 for a tied parameter whose values differ from those of `source`."""
    return Diagnostic(
        "W0504",
        f"`{escape_text(parameter.name)}` is tied to `{escape_text(source)}`, but their values "
        "in the checkpoint differ",
        Label.from_span(parameter.span, parameter.origin),
        (Label(rule_span, "tied by this rule"),) if rule_span else (),
        notes=(
            f"in `{escape_text(checkpoint.path)}`",
            "both values are used, as in transformers 5; older versions of transformers used "
            f"`{escape_text(source)}` for both",
        ),
        helps=("if the model was trained with two separate weights, remove the `tie`",),
        severity="warning",
    )


def make_random_init_warning(head_weights: RandomInitWeights, path: Path) -> Diagnostic:
    """Return the warning W0528, which lists randomly initialized parameters and initializers."""
    names_by_initializer: dict[str, list[str]] = {}
    for name, initializer in head_weights.initializers.items():
        names_by_initializer.setdefault(initializer, []).append(name)
    first, *others = head_weights.parameters.values()
    return Diagnostic(
        "W0528",
        f"{len(others) + 1} weight{'s are' if others else ' is'} not in the checkpoint and "
        f"{'were' if others else 'was'} initialized with the seed {head_weights.seed}",
        Label.from_span(first.span, first.origin),
        notes=(
            *(
                f"{escape_text(format_name_groups(names, 8))}: {initializer}"
                for initializer, names in names_by_initializer.items()
            ),
            f"all others are in `{escape_text(path)}`",
        ),
        helps=("outputs of a new head are meaningless before training",),
        severity="warning",
    )


def _make_foreign_checkpoint_error(
    checkpoint: Checkpoint, missing: Sequence[MissingParameter], unused: Sequence[str]
) -> Diagnostic:
    first = missing[0][0]
    content = (
        f"`{escape_text(checkpoint.path)}` has {escape_text(format_name_groups(sorted(unused)))}"
    )
    return Diagnostic(
        "E0501",
        f"the checkpoint has none of the {len(missing)} weights of the model",
        Label.from_span(first.span, first.origin),
        notes=(
            f"the model has {escape_text(format_name_groups([m[0].name for m in missing]))}",
            content if unused else "it is empty",
        ),
        helps=(
            "check that it is the checkpoint of this spec; if only names differ, map them with "
            "`load` in `weights`",
        ),
    )


def _make_missing_tensor_error(
    checkpoint: Checkpoint,
    naming: ParameterNaming,
    similar_parameters: Sequence[MissingParameter],
    unused: Sequence[str],
) -> tuple[Diagnostic, set[str]]:
    """Return the error for parameters that have no tensors in the checkpoint, and the names of the
    unused tensors that the error suggests.
    """
    parameter, tensor = similar_parameters[0]
    suggestion = _suggest_name(checkpoint, similar_parameters, unused)
    pairs = [*suggestion.items()] or [(w.name, w.name) for w, _ in similar_parameters]
    # all parameters of the group match the pattern of a single `load` rule
    name, source = map(escape_text, infer_name_patterns(pairs))
    help = f'if the tensor has another name, write  load "{name}" = …  in `weights`'
    if suggestion:
        nearest = format_suggestion(escape_text(pairs[0][1]))
        help = f'{nearest} Write  load "{name}" = "{source}"'
    elif last_layer := _find_last_layer(tensor, checkpoint.tensors):
        help = f"the last layer in the checkpoint is `{escape_text(last_layer)}`; {LAYERS_HELP}"
    notes = [f"searched for `{escape_text(tensor)}` in `{escape_text(checkpoint.path)}`"]
    if naming != ParameterNaming():
        notes.append(f"tensors of this checkpoint are searched {naming}")
    if len(similar_parameters) > 1:
        names = format_name_groups([w.name for w, _ in similar_parameters])
        notes.append(f"all of them: {escape_text(names)}")
    return (
        Diagnostic(
            "E0501",
            f"`{escape_text(parameter.name)}` is not in the "
            f"checkpoint{_format_more(similar_parameters)}",
            Label.from_span(
                parameter.span,
                parameter.origin or f"needs {parameter.dtype}{list(parameter.shape)}",
            ),
            notes=tuple(notes),
            helps=(help,),
        ),
        set(suggestion.values()),
    )


LAYERS_HELP = "compare the number of layers or experts with config.json"


def _find_last_layer(name: str, other_names: Iterable[str]) -> str:
    """Return the prefix, such as `h.11`, of the last layer in `other_names` if `name` is in a later
    layer, or "".
    """
    for layer in re.finditer(r"\.(\d{1,9})(?=\.)", name):
        # tensor names in the checkpoint may have a different prefix than `name`
        pattern = re.compile(rf"(?:.*\.)?{re.escape(name[: layer.start()])}\.(\d{{1,9}})\.")
        indices = [int(match[1]) for n in other_names if (match := pattern.match(n))]
        if indices and int(layer[1]) > max(indices):
            return f"{name[: layer.start()]}.{max(indices)}"
    return ""


def _suggest_name(
    checkpoint: Checkpoint, similar_parameters: Sequence[MissingParameter], unused: Sequence[str]
) -> dict[str, str]:
    """Map each parameter name to the unused tensor with the most similar name. Tensors of the same
    shape take precedence. Parameters without a similar tensor are omitted.
    """
    suggestions: dict[str, str] = {}
    for parameter, name in similar_parameters:
        candidates = [n for n in unused if checkpoint.tensors[n].shape == parameter.shape]
        if nearest := find_nearest_name(name, candidates) or find_nearest_name(name, unused):
            suggestions[parameter.name] = nearest
    return suggestions


def _make_mismatch_error(checkpoint: Checkpoint, group: Sequence[TensorMismatch]) -> Diagnostic:
    first = group[0]
    parameter = first.parameter
    label = Label.from_span(
        parameter.span, parameter.origin or f"has shape {list(parameter.shape)}"
    )
    labels = (Label(first.rule_span, "loaded by this rule"),) if first.rule_span else ()
    notes = tuple(
        f"{escape_text(checkpoint.get_file(n).path.name)} contains `{escape_text(n)}`: "
        f"{checkpoint.tensors[n]}"
        for n in first.tensors[:4]
    )
    name = escape_text(parameter.name)
    if first.reason:
        title = f"`{name}` does not match its `load` rule{_format_more(group)}"
        help = (
            f"the rule must return {list(parameter.shape)}; compare the shapes above and "
            "correct the rule"
        )
        return Diagnostic("E0511", title, label, labels, (first.reason, *notes), (help,))
    if first.shape != parameter.shape:
        if first.rule_span:
            notes = (f"the rule returns {list(first.shape)}", *notes)
        notes = (f"the spec declares {parameter.dtype}{list(parameter.shape)}", *notes)
        title = f"`{name}` has the wrong shape{_format_more(group)}"
        help = _suggest_config_value(checkpoint, first) or _suggest_shape_fix(group)
        return Diagnostic("E0503", title, label, labels, notes, (help,))
    title = f"`{name}` must be {parameter.dtype}, but is {first.dtype} in the checkpoint"
    title += _format_more(group)
    help = _suggest_dtype_fix(first)
    return Diagnostic("E0508", title, label, labels, notes, (help,))


def _suggest_dtype_fix(mismatch: TensorMismatch) -> str:
    """Suggest a fix for a dtype that cannot be converted."""
    if mismatch.dtype in ("i8", "u8", "i32") and mismatch.parameter.dtype.startswith(("f", "bf")):
        return "such tensors are usually packed by a quantizer; use the unquantized checkpoint"
    return "floats are converted only to other float types, integers only to other integer types"


def _suggest_config_value(checkpoint: Checkpoint, mismatch: TensorMismatch) -> str:
    """Suggest the config value for the vocabulary size of an adapter's embeddings, or return ""."""
    parameter, shape = mismatch.parameter, mismatch.shape
    file = checkpoint.get_file(mismatch.tensors[0])
    if file in checkpoint.files or len(shape) != len(parameter.config_names):
        return ""
    axes = [a for a in range(len(shape)) if shape[a] != parameter.shape[a]]
    if len(axes) != 1 or not (name := parameter.config_names[axes[0]]):
        return ""
    return (
        f"axis {axes[0]} is {shape[axes[0]]} in the adapter and {parameter.shape[axes[0]]} in "
        f"the spec; use  --set {name}={shape[axes[0]]}"
    )


def _suggest_shape_fix(group: Sequence[TensorMismatch]) -> str:
    """Suggest a fix for a shape mismatch of similar parameters."""
    expected, shape = group[0].parameter.shape, group[0].shape
    if all(len(mismatch.tensors) == 1 and not mismatch.rule_span for mismatch in group):
        pairs = [(mismatch.parameter.name, mismatch.tensors[0]) for mismatch in group]
        name, source = map(escape_text, infer_name_patterns(pairs))
        if len(shape) == 2 and shape[::-1] == expected:
            return (
                f'it is stored transposed; write  load "{name}" = '
                f'transpose("{source}")  in `weights`'
            )
        if math.prod(shape) == math.prod(expected):
            return (
                f'the number of elements is equal; write  load "{name}" = '
                f'reshape("{source}", shape={list(expected)})'
            )
    elif len(shape) == 2 and shape[::-1] == expected:
        return "the axes of the result are swapped; add or remove `transpose` in the rule"
    return _suggest_axis_fix(group[0].parameter, shape)


def _suggest_axis_fix(parameter: ModelParameter, shape: Shape) -> str:
    """Suggest a fix if the shape differs in one axis, or else suggest other weight files."""
    expected = parameter.shape
    if len(shape) == len(expected):
        different_axes = [a for a in range(len(shape)) if shape[a] != expected[a]]
        if len(different_axes) == 1:
            axis = different_axes[0]
            find_keys = parameter.find_config_keys
            if keys := find_keys(parameter.name, axis) if find_keys else "":
                return (
                    f"axis {axis} is {shape[axis]} in the checkpoint, but {expected[axis]} "
                    f"according to {keys} in config.json; correct config.json"
                )
            return (
                f"axis {axis} is {shape[axis]} in the checkpoint and {expected[axis]} in the spec; "
                "compare the config values of its shape with config.json"
            )
    return "check that the checkpoint and its config.json belong to this spec"


def _suggest_more_layers(checkpoint: Checkpoint, unused: Sequence[str]) -> Iterator[str]:
    """Yield a help text if an unused tensor belongs to a layer after the model's last layer."""
    used_names = checkpoint.tensors.keys() - set(unused)
    # search only one name per pattern and a limited number of patterns, to keep the run time linear
    # in the number of tensors
    names_by_pattern = {split_name_at_numbers(n): n for n in sorted(unused, key=_list_numbers)}
    last_names = islice(names_by_pattern.values(), MAX_ERRORS)
    last_layers = filter(None, (_find_last_layer(name, used_names) for name in last_names))
    for last_layer in islice(last_layers, 1):
        yield f"the last layer of the model is `{escape_text(last_layer)}`; {LAYERS_HELP}"


def _list_numbers(name: str) -> list[int]:
    """Return the layer and expert indices in a tensor name."""
    return [int(number) for number in re.findall(r"\.(\d{1,9})(?=\.)", name)]


def _get_path(checkpoint: Checkpoint, tensor: str) -> Path:
    """Return the path of the checkpoint, or of the adapter if the adapter contains `tensor`."""
    file = checkpoint.get_file(tensor)
    return Path(checkpoint.path) if file in checkpoint.files else file.path


def _make_unused_tensor_error(checkpoint: Checkpoint, names: Sequence[str]) -> Diagnostic:
    name_groups = group_parameter_names(sorted(names))
    patterns = list(dict.fromkeys(replace_numbers_with_placeholders(n) for n in names))
    ignores = "  ".join(f'ignore "{escape_text(p)}"' for p in patterns[:4])
    remainder = f"  and {len(patterns) - 4} more" if len(patterns) > 4 else ""
    is_single = len(names) == 1
    return Diagnostic(
        "E0505",
        f"{'a tensor' if is_single else f'{len(names)} tensors'} in the checkpoint "
        f"{'is' if is_single else 'are'} unused",
        notes=(
            f"in `{escape_text(_get_path(checkpoint, names[0]))}`: "
            f"{escape_text(format_name_groups(sorted(names), 8))}",
            *([f"{len(name_groups)} name patterns in total"] if len(name_groups) > 8 else []),
        ),
        helps=(
            *_suggest_more_layers(checkpoint, names),
            f"to ignore them, write in `weights`:   {ignores}{remainder}",
            "ignore only buffers that do not affect the outputs or that the spec computes, such as "
            "position ids and rotary frequencies, and the heads of other tasks",
        ),
    )


def _format_more(similar: Sequence[object]) -> str:
    return f" (and {len(similar) - 1} more like it)" if len(similar) > 1 else ""


def _group_by_key(items: Iterable[T], key: Callable[[T], object]) -> list[list[T]]:
    """Group items by key, with the groups ordered by the first appearance of their keys."""
    groups: dict[object, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return list(groups.values())
