"""Linear layers, embeddings, position encodings, norms, softmax, attention, mixture of experts."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, TypeVar

from specc.diagnostics.immutable_dataclass import immutable_dataclass
from specc.ir.dim import Dim, divide_dims_exactly, mod_dims
from specc.ir.op import Op, Operand, OptionalOperand
from specc.ir.ops.loop import check_body_input_types
from specc.ir.signature import AxisBindings, Signature
from specc.ir.types import KIND_BY_DTYPE, ShapeError, Type

if TYPE_CHECKING:
    from specc.ir.graph import Graph, Value


_T = TypeVar("_T")


class Linear(Op, sig="f[*s i], f[o i], f[o]? -> f[*s o]", is_compute_intensive=True):
    """Linear layer over the last axis: `x @ w.T + b`."""

    bias = OptionalOperand(2)


class Embedding(Op, sig="i[*s], f[v d] -> f[*s d]"):
    """Embedding lookup in a table of `v` vectors."""

    ids, table = Operand(0), Operand(1)


class LayerNorm(Op, sig="f[*s d~], f[d]?, f[d]? -> f[*s d]"):
    """`(x - mean) / sqrt(var + eps) * g + b` over the last axis (arXiv:1607.06450, eq. 4)."""

    eps: float


class RMSNorm(Op, sig="f[*s d~], f[d]? -> f[*s d]"):
    """`x / sqrt(mean(x²) + eps) * g` over the last axis (arXiv:1910.07467, eq. 4)."""

    eps: float


class Dropout(Op, sig="f[*s] -> f[*s]"):
    """Dropout, which is the identity at inference. In training, elements are set to zero with
    probability `p` and the others are divided by `1 - p` (arXiv:1207.0580). `call` distinguishes
    several calls on the same tensor, because each call samples a different mask.
    """

    p: float
    call: int


class Softmax(Op, sig="f[*a t~ *b] -> f[*a t *b]"):
    """Softmax along axis `axis`. The result is NaN if all values along the axis are -inf."""

    axis: int


class AttentionNormalizer:
    """Base class of ops that normalize masked attention scores to weights in [0, 1]."""

    scores, mask = Operand(0), Operand(1)


class MaskedSoftmax(AttentionNormalizer, Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
    """Softmax over the unmasked keys on the last axis. The weights of a query are zero if all its
    keys are masked or have the score -inf.
    """


class MaskedHardmax(AttentionNormalizer, Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"):
    """One-hot encoding of each query's largest unmasked score (the first among equal scores). The
    weights of a query are zero if all its keys are masked or have the score -inf.
    """


class MaskedL1Normalization(
    AttentionNormalizer, Op, sig="f[*s q k|q], b[#*s #q #k|q] -> f[*s q k]"
):
    """Unmasked scores divided by their sum, as in kernel regression (Nadaraya 1964). Negative
    scores are treated as zero. If the sum is zero, the weights are zero.
    """


class WeightedSum(
    Op, sig="f[#*s q k|q], f[#*s k|q e] -> f[*s q e]", is_compute_intensive=True, spec_name="weigh"
):
    """Weighted sum of values, `w @ v`. Masked-out keys do not affect the result."""

    weights, values = Operand(0), Operand(1)


class Attend(
    Op,
    sig="f[b h q d], f[b g k|q d], f[b g k|q e], b[#b #h #q #k|q]?, f[#b #h #q "
    "#k|q]?, f[h]? -> f[b h q e], f[b h q k]",
    is_compute_intensive=True,
):
    """Scaled dot-product attention.

    The operands are query, key, value, mask, bias and sinks. The results are the attention output
    and the attention weights. `weights = softmax(cap(scale · q kᵀ) + bias, where mask)`, `output =
    weights v` (arXiv:1706.03762, eq. 1). Each of the `g` key heads serves `h / g` adjacent query
    heads (grouped-query attention, arXiv:2305.13245). `cap > 0` enables logit soft-capping: a score
    s becomes `cap · tanh(s / cap)` before the bias (arXiv:2408.00118). An attention sink is an
    additional score per head without a value vector. Without a mask, no key is masked. If all keys
    of a query are masked, the query's output is zero.
    """

    scale: float
    cap: float = 0.0

    query, key, value = Operand(0), Operand(1), Operand(2)
    mask, bias, sinks = OptionalOperand(3), OptionalOperand(4), OptionalOperand(5)
    weights_result = 1

    def infer_result_axes(self, axes: AxisBindings) -> None:
        heads, kv_heads = axes["h"], axes["g"]
        remainder = mod_dims(heads, kv_heads).number
        if remainder:
            raise ShapeError(
                f"the number of query heads, {heads}, must be a multiple of the number of key "
                f"heads, {kv_heads}",
                *((0, 1), (heads, kv_heads), "h"),
            )


class PatchEmbedding(
    Op,
    sig="f[b c y x], f[d c p r], f[d]? -> f[b n d]",
    is_compute_intensive=True,
    spec_name="patches",
):
    """Patch embedding: an image is split into `p × r` patches in row-major order, and each patch is
    projected to a vector.

    Patch embedding is a convolution whose stride is the kernel size (arXiv:2010.11929, sec. 3.1).
    """

    def infer_result_axes(self, axes: AxisBindings) -> None:
        patch_rows = count_patches_per_side(axes["y"], axes["p"], "high")
        axes["n"] = patch_rows * count_patches_per_side(axes["x"], axes["r"], "wide")


def count_patches_per_side(length: Dim, patch_size: Dim, dimension: str) -> Dim:
    """Return `length / patch_size`, the number of patches along one side of an image. Raise
    ShapeError if `length` is not divisible by `patch_size`. `dimension` is "high" or "wide", for
    the message.
    """
    if mod_dims(length, patch_size).number:
        raise ShapeError(
            f"an image {length} {dimension} cannot be divided into patches of {patch_size}", (0, 1)
        )
    return divide_dims_exactly(length, patch_size)


class Sinusoid(Op, sig="i[*s] -> f[*s d]"):
    """Sinusoidal position encoding: sine and cosine of `position · base^(-2n/dim)`
    (arXiv:1706.03762, sec. 3.5).

    The layout `interleaved` has sines at even features and cosines at odd features, as in the
    paper. The layout `halves` has all sines, then all cosines, as in Marian. The layout `fairseq`
    is `halves` with the frequencies `base^(-n / (dim/2 - 1))`. Angles are computed in float64 and
    rounded once.
    """

    dim: Dim
    layout: str
    base: float = 10000.0

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.layout in ("interleaved", "halves", "fairseq"), self.layout
        if self.dim.number is not None and self.dim.number % 2:
            raise ShapeError(f"sinusoidal embeddings require an even dimension, got {self.dim}")
        axes["d"] = self.dim


class RopeAngles(Op, sig="i[*s]... -> f[*s r], f[*s r]"):
    """Cosines and sines of `position · frequency` for the `dim / 2` feature pairs of RoPE
    (arXiv:2104.09864, eq. 15).

    With several position axes (M-RoPE, arXiv:2409.12191, sec. 2.1.1), there is one operand per
    axis, and pair n uses the position on axis `axes[n]`. `frequencies` overrides `theta^(-2n/dim)`
    for RoPE scaling. Cosines and sines are multiplied by `factor` (YaRN's attention factor). Angles
    are computed in float64 and rounded once. `max_positions` is the maximum sequence length for
    which the frequencies are valid, or 0 if they are valid for any length.
    """

    dim: Dim
    theta: float
    factor: float = 1.0
    frequencies: tuple[float, ...] = ()
    max_positions: int = 0
    axes: tuple[int, ...] = ()

    def infer_result_axes(self, axes: AxisBindings) -> None:
        if self.dim.number is not None and self.dim.number % 2:
            raise ShapeError(f"rotary embedding requires an even dimension, got {self.dim}")
        pairs = divide_dims_exactly(self.dim, 2)
        if self.axes and pairs.number not in (None, len(self.axes)):
            raise ShapeError(f"{pairs} feature pairs, but {len(self.axes)} position axes")
        axes["r"] = pairs


class Rotate(Op, sig="f[b h t d~], f[#b t r], f[#b t r] -> f[b h t d]"):
    """Rotate pairs of features by angles with the given cosines and sines (arXiv:2104.09864, eq.
    34).

    `half` (half-split, "rotate_half") pairs feature n with feature n + r. `interleaved` pairs
    feature 2n with feature 2n + 1. The features from index 2r on are unchanged.
    """

    pairs: str

    def infer_result_axes(self, axes: AxisBindings) -> None:
        assert self.pairs in ("half", "interleaved"), self.pairs
        head_size, pair_count = axes["d"].number, axes["r"].number
        if head_size is not None and pair_count is not None and 2 * pair_count > head_size:
            raise ShapeError(f"cannot rotate {2 * pair_count} features of {head_size}", (0, 1))


@immutable_dataclass(kw_only=True)
class MixtureOfExpertsOperands(Generic[_T]):
    """Operands of a `MixtureOfExperts`, or entries of a per-operand list, grouped by role."""

    x: _T
    ids: _T
    gates: _T
    keep: _T | None
    stacked_operands: tuple[_T, ...]
    captured: tuple[_T, ...]

    @property
    def body_operands(self) -> tuple[_T, ...]:
        """The operands that become inputs of the body, in the order of these inputs."""
        return self.x, *self.stacked_operands, *self.captured


class MixtureOfExperts(
    Op,
    sig="f[*s d], i[*s k], f[*s k], a[*t]... -> f[*s o]",
    is_compute_intensive=True,
    spec_name="route",
):
    """Mixture of experts: the weighted sum of the outputs of the `k` experts of each token (Shazeer
    et al. 2017, arXiv:1701.06538, eq. 1).

    The operands are the tokens, the expert indices, the gate weights, `keep` if `has_mask` is True,
    `stacked_count` tensors with one slice per expert along their first axis, and values that the
    body captures. Tokens where `keep` (bool [*s]) is false are not routed, and their outputs are
    zero. Expert indices that are out of range are ignored. An expert that is selected twice counts
    twice. The body computes the output of one expert. The inputs of the body are the tokens that
    are routed to the expert, the expert's slice of each stacked tensor, and the captured values.
    The tokens have the shape [1, …, tokens, d] and the rank of `x`. The output of the body has one
    position per token and is computed for each token independently.
    """

    body: "Graph"
    num_experts: Dim
    stacked_count: int
    has_mask: bool = False

    @property
    def first_body_operand_index(self) -> int:
        """The index of the first operand after the tokens that becomes an input of the body."""
        return 4 if self.has_mask else 3

    @property
    def token_count_symbol(self) -> str:
        """The symbolic number of tokens that are routed to an expert."""
        name = self.get_expert_inputs()[0].shape[-2].name
        if name is None:
            raise ShapeError("the body has no token axis")
        return name

    def get_expert_inputs(self) -> "tuple[Value, ...]":
        """Return the inputs of the body: tokens, slices of stacked tensors, and captures."""
        return tuple(self.body.inputs.values())

    def get_expert_output(self) -> "Value":
        """Return the output of the body."""
        (value,) = self.body.outputs.values()
        return value

    def split_operands(self, entries: Sequence[_T]) -> MixtureOfExpertsOperands[_T]:
        """Group the entries of a per-operand list by the operands' roles."""
        stacked_end = self.first_body_operand_index + self.stacked_count
        return MixtureOfExpertsOperands(
            x=entries[0],
            ids=entries[1],
            gates=entries[2],
            keep=entries[3] if self.has_mask else None,
            stacked_operands=tuple(entries[self.first_body_operand_index : stacked_end]),
            captured=tuple(entries[stacked_end:]),
        )

    def get_signature(self) -> Signature:
        """Build the signature. The axes of stacked and captured operands have unique names, because
        every token reads all elements along these axes.
        """
        x, *others = (v.type for v in self.get_expert_inputs())
        terms = [f"{KIND_BY_DTYPE[x.dtype]}[*s d]", "i[*s k]", "f[*s k]"]
        terms += ["b[*s]"] if self.has_mask else []
        for n, type in enumerate(others):
            axes = ["e"] if n < self.stacked_count else []
            axes += [f"a{n}_{axis}" for axis in range(type.rank)]
            terms.append(f"{KIND_BY_DTYPE[type.dtype]}[{' '.join(axes)}]")
        return Signature.parse(f"{', '.join(terms)} -> f[*s o]")

    def infer_result_axes(self, axes: AxisBindings) -> None:
        axes["o"] = self.get_expert_output().shape[-1]
        if self.stacked_count and axes["e"] != self.num_experts:
            title = f"expected weights for {self.num_experts} experts, got {axes['e']}"
            raise ShapeError(title, (self.first_body_operand_index,))

    def infer_result_types(self, *args: Type | None) -> tuple[Type, ...]:
        types = [a for a in args if a is not None]
        if len(types) != len(args) or len(args) != self.first_body_operand_index - 1 + len(
            self.get_expert_inputs()
        ):
            raise ShapeError(f"{len(args)} operands do not fit the body")
        operand_types = self.split_operands(types)
        if operand_types.x.rank < 2:
            raise ShapeError("routing requires a token axis", (0,))
        result_types = super().infer_result_types(*args)
        unit_axes = (Dim.from_value(1),) * (operand_types.x.rank - 2)
        token_shape = (*unit_axes, Dim.symbol(self.token_count_symbol))
        body_operand_types = [
            Type(operand_types.x.dtype, (*token_shape, operand_types.x.shape[-1])),
            *(Type(t.dtype, t.shape[1:]) for t in operand_types.stacked_operands),
            *operand_types.captured,
        ]
        operands = (0, *range(self.first_body_operand_index, len(args)))
        check_body_input_types(self.body, body_operand_types, operands)
        result = self.get_expert_output().type
        if result != Type(result_types[0].dtype, (*token_shape, result.shape[-1])):
            raise ShapeError(f"the body returns {result} for tokens {list(map(str, token_shape))}")
        return result_types


class GroupNorm(Op, sig="f[b *a~ c~ *s~], f[c]?, f[c]? -> f[b *a c *s]"):
    """`(x - mean) / sqrt(var + eps) * g + b`, where mean and variance are computed over a group of
    adjacent channels and all other axes except the first (arXiv:1803.08494, eq. 1 to 7).

    The channels are axis `axis`, and are split into `groups` groups of equal size.
    """

    axis: int
    groups: Dim
    eps: float

    weight, bias = OptionalOperand(1), OptionalOperand(2)

    def count_leading_axes(self) -> int | None:
        return self.axis - 1

    def infer_result_axes(self, axes: AxisBindings) -> None:
        remainder = mod_dims(axes["c"], self.groups).number
        if remainder:
            raise ShapeError(
                f"{axes['c']} channels cannot be divided into {self.groups} equal groups", (0,)
            )
