"""Built-in position functions: position ids, sinusoidal and rotary position embeddings."""

from collections.abc import Mapping
from typing import Literal, NoReturn, TypeAlias

from specc.frontend.builtins.registry import SECOND_AXIS, ZERO, CallContext, register_builtin
from specc.frontend.rope_frequencies import (
    MSCALE_OPTIONS,
    SCALING_DEFAULTS,
    ScalingKind,
    compute_axial_frequencies,
    compute_rope_frequencies,
    explain_invalid_rope_settings,
    fold_mscale,
    get_max_rope_length,
)
from specc.frontend.runtime_scalars import cast_to_float_attribute, convert_to_op_attribute
from specc.frontend.spec_values import Rope, RopeNumber, Tensor, describe_value
from specc.ir import ops
from specc.ir.dim import Dim

MAX_SINUSOID_WIDTH = 2**20
"""The maximum width of sinusoidal embeddings. The model stores one frequency per feature pair."""


@register_builtin()
def positions(
    ctx: CallContext, x: Tensor, *, offset: Dim = ZERO, axis: Dim = SECOND_AXIS
) -> Tensor:
    """Return position ids. For a padding mask `keep`, the result is int[batch, n]: the number of
    unpadded positions before each position. The id of a padded position is the id of the last
    unpadded position before it, or 0. For any other tensor, the result is an int[n] tensor with the
    indices 0, 1, … along `axis`. `offset` is added to all position ids.
    """
    # position ids are the cumulative sum of the mask minus 1, and 0 at left-padded positions
    if x.type.dtype == "bool":
        count = ctx.add_op(ops.CumSum(ctx.resolve_axis(x, axis)), ctx.add_op(ops.Cast("i64"), x))
        index = ctx.add_binary_op("sub", count, ctx.add_constant(1, "i64"))
        ids = ctx.add_binary_op("max", index, ctx.add_constant(0, "i64"))
    else:
        ids = ctx.add_op(ops.Extent(ctx.resolve_axis(x, axis)), x)
    # an offset of 0, which most models use, needs no node
    if offset == 0:
        return ids
    # the offset may be a dynamic dimension, such as the number of past positions
    if offset.number is None:
        return ctx.add_binary_op("add", ids, ctx.add_op(ops.Size(offset)))
    return ctx.add_binary_op("add", ids, ctx.add_constant(offset.number, "i64"))


@register_builtin()
def sinusoid(
    ctx: CallContext,
    at: Tensor,
    *,
    dim: Dim,
    layout: Literal["interleaved", "halves", "fairseq"],
    base: float = 10000.0,
) -> Tensor:
    """Compute sinusoidal position embeddings of width `dim` (arXiv:1706.03762, sec. 3.5).

    `layout` is the order of sines and cosines. `interleaved` alternates sines and cosines, and
    `halves` puts all sines first. `fairseq` has the order of `halves` and the frequencies of
    fairseq.
    """
    if at.type.dtype != "i64":
        ctx.raise_error("E0301", f"position ids must be integers, got {describe_value(at)}", "at")
    ctx.check_range(base, "base", 1e-6)
    return ctx.add_op(ops.Sinusoid(dim, layout, base), at)


OPTIONS_BY_SCALING: Mapping[str, tuple[str, ...]] = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original"),
    "yarn": (
        *("factor", "original", "beta_fast", "beta_slow", "attention_factor"),
        *("mscale", "mscale_all_dim", "truncate"),
    ),
    "dynamic": ("factor", "original", "longest"),
    "ntk_alpha": ("alpha",),
    "longrope": (*("factor", "original", "attention_factor", "divisors", "beyond", "longest"),),
    "proportional": ("part", "factor"),
    "axial": (),
}
"""The options of RoPE scaling for each scaling kind."""
LENGTH_OPTIONS = ("original", "longest")
"""The RoPE scaling options that are sequence lengths."""
NUMBER_OPTIONS = sorted(
    {n for options in OPTIONS_BY_SCALING.values() for n in options} - {*LENGTH_OPTIONS}
)
"""The RoPE scaling options whose value is one number, or one number per feature pair."""
REQUIRED_OPTIONS = ("factor", "original", "divisors", "part", "alpha")
"""The RoPE scaling options without a default. Only `proportional` has a default `factor`."""


@register_builtin()
def rope(
    ctx: CallContext,
    *,
    theta: float,
    kind: ScalingKind = "default",
    factor: float | None = None,
    low_freq_factor: float | None = None,
    high_freq_factor: float | None = None,
    original: Dim | None = None,
    beta_fast: float | None = None,
    beta_slow: float | None = None,
    attention_factor: float | None = None,
    mscale: float | None = None,
    mscale_all_dim: float | None = None,
    truncate: bool | None = None,
    divisors: tuple[float, ...] | None = None,
    beyond: tuple[float, ...] | None = None,
    longest: Dim | None = None,
    part: float | None = None,
    alpha: float | None = None,
) -> Rope:
    """Define RoPE frequencies `theta^(-2n/d)` and their scaling for longer contexts.

    The options depend on the value of `kind`, the scaling kind. `linear`: `factor`. `llama3`:
    `factor`, the `original` context length, `low_freq_factor=1.0`, `high_freq_factor=4.0`. `yarn`:
    `factor`, `original`, `beta_fast=32.0`, `beta_slow=1.0`, `truncate=true`, and
    `attention_factor`, or `mscale` and `mscale_all_dim`, which determine the attention factor.
    `longrope` divides the frequencies by `divisors` (`short_factor`), or by `beyond`
    (`long_factor`) if `longest` exceeds the `original` length. `dynamic` computes theta from
    `factor`, `original` and `longest`. `ntk_alpha` multiplies theta by `alpha^(d/(d-2))`.
    `proportional` rotates only the fraction `part` of the feature pairs of a head, and has the
    option `factor=1.0`. `axial` computes separate frequencies for each position axis of `rotate`.
    `longest` is the maximum sequence length, by default `original`. `--context-length` sets
    `longest`. The compiled model rejects longer sequences.
    """
    options = locals()
    numbers: dict[str, RopeNumber] = {
        n: options[n] for n in NUMBER_OPTIONS if options[n] is not None
    }
    lengths: dict[str, Dim] = {n: options[n] for n in LENGTH_OPTIONS if options[n] is not None}
    _check_options(ctx, kind, {*numbers, *lengths})
    parameters = {**SCALING_DEFAULTS.get(kind, {}), **fold_mscale(numbers)}
    parameters |= {n: ctx.require_integer(length, n) for n, length in lengths.items()}
    # frequencies that depend on the sequence length are computed for the maximum sequence length
    if kind == "dynamic" or beyond is not None:
        parameters.setdefault("longest", parameters["original"])
    frequencies = Rope(theta, kind, tuple(parameters.items()))
    if reason := explain_invalid_rope_settings(frequencies):
        ctx.raise_error("E0203", f"`rope`: {reason}")
    return frequencies


def _check_options(ctx: CallContext, kind: str, option_names: set[str]) -> None:
    """Raise E0201 for an option of another scaling kind, or for a missing required option."""
    kind_options = OPTIONS_BY_SCALING[kind]
    for name in sorted(option_names - {*kind_options}):
        _raise_option_of_other_kind(ctx, kind, name)
    defaults = {"factor"} if kind == "proportional" else set()
    if missing_options := [
        n for n in kind_options if n in REQUIRED_OPTIONS and n not in option_names | defaults
    ]:
        ctx.raise_error(
            "E0201", f"missing option `{missing_options[0]}` of `rope` with `kind={kind}`", "kind"
        )
    _check_exclusive_options(ctx, kind, option_names)


def _raise_option_of_other_kind(ctx: CallContext, kind: str, name: str) -> NoReturn:
    owners = [k for k, options in OPTIONS_BY_SCALING.items() if name in options]
    helps = [f"it is an option of {' and '.join(f'`kind={o}`' for o in owners)}"]
    title = f"unknown option `{name}` of `rope` with `kind={kind}`"
    ctx.raise_error("E0201", title, name, helps=helps)


def _check_exclusive_options(ctx: CallContext, kind: str, option_names: set[str]) -> None:
    """Raise E0201 for mutually exclusive options, or if only one of two related options is set."""
    if kind == "yarn" and "attention_factor" in option_names and option_names & {*MSCALE_OPTIONS}:
        title = (
            "`attention_factor` cannot be combined with `mscale` and `mscale_all_dim`, which "
            "determine it"
        )
        ctx.raise_error("E0201", title, "attention_factor", helps=["remove one of the two"])
    if "longest" in option_names and kind == "longrope" and "beyond" not in option_names:
        title = "`longest` selects between `divisors` and `beyond`, but `beyond` is missing"
        ctx.raise_error("E0201", title, "longest", helps=["add `beyond`, or remove `longest`"])
    if len(option_names & {*MSCALE_OPTIONS}) == 1:
        title = "`mscale` and `mscale_all_dim` must be set together"
        ctx.raise_error("E0201", title, (option_names & {*MSCALE_OPTIONS}).pop())


def _check_rotated_width(ctx: CallContext, rope: Rope, width: Dim, head_width: Dim) -> None:
    """Raise E0203 if the scaling kind does not support the width, or E0315 if it is dynamic."""
    if rope.kind == "default":
        return
    # the model stores one frequency per feature pair, so the number of pairs must be static
    description = f"the number of features that `{rope.kind}` rotates"
    convert_to_op_attribute(ctx.make_node_builder("x"), width, description)
    # for a single feature pair, the exponent of the scaled theta is infinite
    if rope.kind in ("dynamic", "ntk_alpha") and width == 2:
        ctx.raise_error("E0203", f"`{rope.kind}` needs more than 2 rotated features, got 2", "dim")
    # for `proportional`, the option `part` is the rotated fraction of the whole head
    if rope.kind == "proportional" and width != head_width:
        title = "`proportional` computes the number of rotated features, so `dim` must not be set"
        ctx.raise_error("E0203", title, "dim", helps=["remove `dim`"])


PairOrder: TypeAlias = Literal["contiguous", "interleaved"]
"""The order in which several position axes share the feature pairs of a head."""


@register_builtin()
def rotate(
    ctx: CallContext,
    x: Tensor,
    at: Tensor | tuple[Tensor, ...],
    rope: Rope,
    *,
    pairs: Literal["half", "interleaved"],
    dim: Dim | None = None,
    sections: tuple[Dim, ...] | None = None,
    order: PairOrder | None = None,
) -> Tensor:
    """Apply rotary position embedding to [batch, heads, length, d] at position ids `at`
    (arXiv:2104.09864).

    `pairs=half` rotates feature n with feature n + d/2 (transformers' `rotate_half`), and
    `pairs=interleaved` rotates feature 2n with feature 2n + 1 (the original RoPE). With `dim`, only
    the first `dim` features are rotated (partial rotary), and one more if `dim` is odd. `at` is
    int[batch, length] or int[length], or a list with the position ids of each axis, such as `[t, h,
    w]` (M-RoPE, arXiv:2409.12191). If `rotate` is a list, `sections` contains the number of feature
    pairs per axis, and `order` is the order of these pairs. `contiguous` assigns consecutive pairs
    to each axis. `interleaved` alternates between the axes, and assigns pairs beyond the section of
    an axis to the first axis.
    """
    if len(x.shape) != 4:
        ctx.raise_error("E0307", "`rotate` takes [batch, heads, length, d]", "x", describe_value(x))
    # position ids without a batch axis apply to every batch element
    axes = at if isinstance(at, tuple) else (at,)
    ids = [
        ctx.insert_axis(axis_ids, 0) if len(axis_ids.shape) == 1 else axis_ids for axis_ids in axes
    ]
    width = dim if dim is not None else x.shape[-1]
    if width.number is not None and not 2 <= width.number <= MAX_SINUSOID_WIDTH:
        ctx.raise_error(
            "E0203", f"`rotate` rotates 2 to {MAX_SINUSOID_WIDTH} features, not {width}", "dim"
        )
    _check_rotated_width(ctx, rope, width, x.shape[-1])
    lengths = _resolve_sections(ctx, len(axes), width, sections, order)
    frequencies, factor = _compute_frequencies(ctx, rope, width, lengths, order)
    max_length = get_max_rope_length(rope)
    pair_axes = _assign_pair_axes(lengths, order)
    theta = cast_to_float_attribute(rope.theta)
    if width.number and width.number % 2 and rope.kind == "default" and dim is not None:
        # like transformers, rotate one more feature if the rotated width is odd
        frequencies = tuple(theta ** (-n / width.number) for n in range(0, width.number, 2))
        width += 1
    angles = ops.RopeAngles(width, theta, factor, frequencies, max_length, pair_axes)
    cos, sin = ctx.add_node(angles, *ids)
    return ctx.add_op(ops.Rotate(pairs), x, cos, sin)


def _compute_frequencies(
    ctx: CallContext, rope: Rope, width: Dim, lengths: tuple[int, ...], order: PairOrder | None
) -> tuple[tuple[float, ...], float]:
    """Return the frequencies of the feature pairs, and the attention factor. Raise E0203 for a
    wrong number of `divisors`, or for `axial` frequencies without contiguous sections.
    """
    if rope.kind != "axial":
        frequencies, factor = compute_rope_frequencies(rope, width)
        if frequencies and width.number is not None and 2 * len(frequencies) != width.number:
            title = f"{width} features are {width.number // 2} pairs, but `divisors` has"
            ctx.raise_error("E0203", f"{title} {len(frequencies)}", "rope")
        return frequencies, factor
    if order != "contiguous":
        ctx.raise_error(
            "E0203", "`axial` frequencies need several axes in contiguous sections", "rope"
        )
    return compute_axial_frequencies(rope, lengths), 1.0


def _resolve_sections(
    ctx: CallContext,
    count: int,
    width: Dim,
    sections: tuple[Dim, ...] | None,
    order: PairOrder | None,
) -> tuple[int, ...]:
    """Return the number of feature pairs of each position axis, or () for a single axis."""
    for name, value in (("sections", sections), ("order", order)):
        if (value is None) != (count == 1):
            title = (
                f"`{name}` and position ids for several axes must be used together: `at=[t, h, w]`"
            )
            ctx.raise_error("E0201", title, name)
    if sections is None:
        return ()
    lengths = tuple(ctx.require_integer(n, "sections") for n in sections)
    if len(lengths) != count or (width.number is not None and 2 * sum(lengths) != width.number):
        title = (
            f"`sections` must divide {width} features into pairs for {count} axes, got "
            f"{list(lengths)}"
        )
        ctx.raise_error("E0203", title, "sections")
    return lengths


def _assign_pair_axes(lengths: tuple[int, ...], order: PairOrder | None) -> tuple[int, ...]:
    """Return the index of the position axis of each feature pair, or () for a single axis."""
    count = len(lengths)
    if order == "contiguous":
        return tuple(axis for axis, length in enumerate(lengths) for _ in range(length))
    interleaved = [(pair, pair % count) for pair in range(sum(lengths))]
    return tuple(axis if pair < count * lengths[axis] else 0 for pair, axis in interleaved)
