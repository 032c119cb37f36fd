"""Check the input arrays of a model: names, dtypes, shapes and values."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from specc.diagnostics.diagnostic import Diagnostic, SpeccError, raise_error
from specc.diagnostics.suggest import find_similar_name, format_suggestion
from specc.io.safe_read import escape_text
from specc.ir.array import Array
from specc.ir.graph import Input
from specc.ir.types import Type
from specc.preprocessing.array_files import cast_input_array, format_first_true_index

EvaluateDim: TypeAlias = Callable[[str, Mapping[str, int]], int | None]
"""A function that computes a dimension such as `2 * src + 1` from the sizes of named dimensions.
The function returns None if a size is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputSpec:
    """The specification of a model input. `dtype` is `f32`, `i64`, `bool` or another type. Each
    dimension is an integer, a name, or a formula. Ids must be less than `id_limit`. If
    `is_optional` is true, the input may be omitted. If `accepts_text` is true, the input may be
    text, which specc tokenizes.
    """

    name: str
    dtype: str
    dims: tuple[str | int, ...]
    id_limit: int | None = None
    is_optional: bool = False
    accepts_text: bool = False


def make_input_spec(
    name: str, type: Type, facts: Input | None, *, is_optional: bool, accepts_text: bool
) -> InputSpec:
    """Return the specification of a graph input, including the constraints in `facts`."""
    bound = facts.upper_bound if facts else None
    return InputSpec(
        name=name,
        dtype=type.dtype,
        dims=tuple(d.number if d.number is not None else str(d) for d in type.shape),
        id_limit=None if bound is None else bound.number,
        is_optional=is_optional,
        accepts_text=accepts_text,
    )


@dataclass(frozen=True, slots=True)
class LengthBound:
    """The minimum and maximum size of a dimension. If `high` is None, there is no maximum."""

    low: int = 0
    high: int | None = None
    reason: str = ""

    def describe_violated_limit(self, length: int) -> str:
        """Return the limit that `length` violates, such as `at most 512`, or "" if it is valid."""
        if length < self.low:
            return f"at least {self.low}"
        is_too_long = self.high is not None and length > self.high
        return f"at most {self.high}" if is_too_long else ""


NO_BOUNDS: Mapping[str, LengthBound] = {}


def check_inputs(
    specs: Sequence[InputSpec],
    arrays_by_name: Mapping[str, Array],
    *,
    bounds: Mapping[str, LengthBound] = NO_BOUNDS,
    evaluate_dim: EvaluateDim = lambda dim, lengths: None,
) -> dict[str, Array]:
    """Check input arrays against `specs`. Return the arrays in the order of `specs`, cast without a
    change of values. Raise all errors at once: E0907 (element type), E0910 (name), E0911 (rank),
    E0912 (size), E0913 (id), E0914 (NaN).
    """
    checker = _InputChecker(evaluate_dim)
    checker.check_names(specs, arrays_by_name)
    arrays: dict[str, Array] = {}
    checked_specs: list[InputSpec] = []
    for spec in specs:
        if spec.name not in arrays_by_name:
            continue
        try:
            array = cast_input_array(np.asarray(arrays_by_name[spec.name]), spec.dtype, spec.name)
        except SpeccError as failed:
            checker.errors.extend(failed.diagnostics)
            continue
        arrays[spec.name] = array
        if array.ndim == len(spec.dims):
            checked_specs.append(spec)
            checker.bind_dims(spec, array)
            checker.check_values(spec, array)
        else:
            checker.report_wrong_rank(spec, array)
    # check formulas last, because they depend on the sizes of all named dimensions
    for spec in checked_specs:
        checker.check_computed_dims(spec, arrays[spec.name])
    checker.check_bounds(bounds)
    if checker.errors:
        raise SpeccError(*checker.errors)
    return arrays


@dataclass(slots=True)
class _InputChecker:
    """The errors found so far, the size of each named dimension, and the input that determines the
    size. `evaluate_dim` evaluates dimensions that are formulas.
    """

    evaluate_dim: EvaluateDim
    errors: list[Diagnostic] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)

    def add_error(
        self, code: str, title: str, *, notes: Iterable[str] = (), helps: Iterable[str] = ()
    ) -> None:
        self.errors.append(Diagnostic(code, title, notes=tuple(notes), helps=tuple(helps)))

    def check_names(self, specs: Sequence[InputSpec], arrays_by_name: Mapping[str, Array]) -> None:
        """Add E0910 for each unknown or missing input."""
        names = [spec.name for spec in specs]
        missing_names = [name for name in names if name not in arrays_by_name]
        # report one error for a misspelled input name, not two (unknown and missing input)
        suggested_names: set[str | None] = set()
        for name in arrays_by_name:
            if name not in names:
                suggestion = find_similar_name(name, missing_names)
                suggested_names.add(suggestion)
                input_list = ", ".join(f"`{n}`" for n in names[:20]) or "none"
                self.add_error(
                    "E0910",
                    f"the model has no input `{escape_text(name)}`",
                    notes=[f"the inputs of the model are {input_list}"],
                    helps=[format_suggestion(suggestion)] if suggestion else [],
                )
        self._report_missing_inputs(specs, {*missing_names} - suggested_names)

    def _report_missing_inputs(self, specs: Sequence[InputSpec], missing: Set[str]) -> None:
        """Add E0910 for each required input that is missing."""
        for spec in specs:
            if spec.name in missing and not spec.is_optional:
                self.add_error(
                    "E0910",
                    f"missing model input `{spec.name}`",
                    helps=[f"pass {_format_accepted_values(spec)} with this name"],
                )

    def bind_dims(self, spec: InputSpec, array: Array) -> None:
        """Compare the dimensions of an input with the shape of its array, and record the size of
        each named dimension. Add E0912 for each mismatch.
        """
        for axis, (dim, length) in enumerate(zip(spec.dims, array.shape, strict=True)):
            if isinstance(dim, int):
                if dim != length:
                    self.add_error(
                        "E0912",
                        f"axis {axis} of `{spec.name}` has length {length}, expected {dim}",
                        notes=[f"`{spec.name}` is {_format_type(spec)}, got {list(array.shape)}"],
                    )
            elif dim.isidentifier():
                bound_length = self.lengths.setdefault(dim, length)
                origin = self.origins.setdefault(dim, spec.name)
                if bound_length != length:
                    title = _describe_clash(dim, bound_length, origin, length, spec.name)
                    self.add_error("E0912", title, helps=[_suggest_clash_fix(dim)])

    def check_computed_dims(self, spec: InputSpec, array: Array) -> None:
        """Compare the dimensions that are formulas with the shape of the array, based on the sizes
        of all named dimensions. Add E0912 for each mismatch.
        """
        for axis, (dim, length) in enumerate(zip(spec.dims, array.shape, strict=True)):
            if isinstance(dim, int) or dim.isidentifier():
                continue
            expected = self.evaluate_dim(dim, self.lengths)
            if expected is not None and expected != length:
                sizes = ", ".join(
                    f"{name} = {n} (`{self.origins[name]}`)"
                    for name, n in self.lengths.items()
                    if name in dim
                )
                self.add_error(
                    "E0912",
                    f"axis {axis} of `{spec.name}` has length {length}, "
                    f"but `{dim}` is {expected} here",
                    notes=[f"from {sizes}"] if sizes else [],
                )

    def check_bounds(self, bounds: Mapping[str, LengthBound]) -> None:
        """Add E0912 for each size outside its bounds, and E0935 for each size that is not
        divisible.
        """
        for dim, length in self.lengths.items():
            location = f"`{dim}` is {length} in `{self.origins[dim]}`"
            self._check_bound(bounds.get(dim, LengthBound()), location, length)
        # check dimensions that are formulas, such as `m + seq` or the result of a stride
        for text in sorted(bounds.keys() - self.lengths.keys()):
            size = self.evaluate_dim(text, self.lengths)
            if size and "%" in text:
                self._report_remainder(text, size, bounds[text].reason)
            elif size is not None:
                self._check_bound(bounds[text], f"`{text}` is {size}", size)

    def _report_remainder(self, text: str, size: int, reason: str) -> None:
        """Add E0935 for a size that violates a divisibility constraint."""
        notes = [
            f"`{name}` is {length} in `{self.origins[name]}`"
            for name, length in self.lengths.items()
            if re.search(rf"\b{re.escape(name)}\b", text)
        ]
        title = f"`{text.strip('()')}` is {size}, but must be divisible"
        helps = ["remove positions, or pad to a multiple"]
        self.add_error("E0935", title, notes=filter(None, [*notes, reason]), helps=helps)

    def _check_bound(self, bound: LengthBound, location: str, length: int) -> None:
        if limit := bound.describe_violated_limit(length):
            notes = [bound.reason] if bound.reason else []
            self.add_error("E0912", f"{location}, but must be {limit}", notes=notes)

    def check_values(self, spec: InputSpec, array: Array) -> None:
        """Add E0914 for NaN in a float input, and E0913 for an id outside the vocabulary."""
        if array.dtype.kind == "f":
            is_invalid = np.isnan(array)
            if is_invalid.any():
                count_text = f"{int(is_invalid.sum())} of {array.size} values are NaN"
                self.add_error(
                    "E0914",
                    f"`{spec.name}` contains NaN at {format_first_true_index(is_invalid)}",
                    notes=[count_text] if array.size > 1 else [],
                    helps=["check the data for divisions by zero and missing values"],
                )
        elif array.dtype.kind in "iu" and spec.id_limit is not None:
            is_invalid = (array < 0) | (array >= spec.id_limit)
            if is_invalid.any():
                self.add_error(
                    "E0913",
                    f"`{spec.name}` contains the id {array[is_invalid][0]} at "
                    f"{format_first_true_index(is_invalid)}, expected 0 to {spec.id_limit - 1}",
                    helps=["check that the ids are from the tokenizer of this model"],
                )

    def report_wrong_rank(self, spec: InputSpec, array: Array) -> None:
        """Add E0911 for an array whose number of axes is wrong."""
        helps = []
        if array.ndim == len(spec.dims) - 1:
            axis = "a batch axis" if spec.dims[0] == "batch" else "the missing axis"
            helps = [f"add {axis}: `[x]` for a list `x`, `x[None]` for an array `x`"]
        axes = {0: "no axes", 1: "1 axis"}.get(array.ndim, f"{array.ndim} axes")
        self.add_error(
            "E0911",
            f"`{spec.name}` has {axes}, expected {len(spec.dims)}",
            notes=[f"expected {_format_type(spec)}, got the shape {list(array.shape)}"],
            helps=helps,
        )


def _describe_clash(dim: str, bound_length: int, origin: str, length: int, name: str) -> str:
    if origin == name:
        return f"`{dim}` is {bound_length} on one axis of `{name}` but {length} on another"
    return f"`{dim}` is {bound_length} in `{origin}` but {length} in `{name}`"


def _suggest_clash_fix(dim: str) -> str:
    if dim == "batch":
        return (
            "pass the same number of examples to each input; to repeat one example use numpy.repeat"
        )
    return f"both axes are `{dim}` in the model, so their lengths must be equal"


def _format_accepted_values(spec: InputSpec) -> str:
    text = "text (a string or a list of strings) or " if spec.accepts_text else ""
    return f"{text}an array of the type {_format_type(spec)}"


def _format_type(spec: InputSpec) -> str:
    return f"{spec.dtype}[{', '.join(map(str, spec.dims))}]"


def check_left_padding(name: str, mask: Array, stride: int) -> None:
    """Raise E0325 if the left padding in a mask is not a multiple of the stride."""
    left_padding = np.where(mask.any(-1), mask.argmax(-1), 0).reshape(-1)
    invalid = np.flatnonzero(left_padding % stride)
    if invalid.size:
        row, count = int(invalid[0]), int(left_padding[invalid[0]])
        positions = "1 position" if count == 1 else f"{count} positions"
        raise_error(
            "E0325",
            f"`{name}` has {positions} of left padding, expected a multiple of the stride {stride}",
            notes=[
                f"batch element {row}: strides would merge other positions than without padding"
            ],
            helps=[f"pad on the right, or on the left by a multiple of {stride}"],
        )


def check_right_padding(name: str, mask: Array) -> None:
    """Raise E0912 if padding precedes a token in a mask with the padding side `right`."""
    invalid = np.argwhere(mask[..., 1:] & ~mask[..., :-1])
    if invalid.size:
        *indices, position = map(int, invalid[0])
        raise_error(
            "E0912",
            f"`{name}` is declared as right padding, but padding precedes a token",
            notes=[f"`{name}{[*indices, position]}` is false, and the next position is true"],
            helps=[f"pad on the right, or declare `{name}` as `keep[…]` without a side"],
        )
