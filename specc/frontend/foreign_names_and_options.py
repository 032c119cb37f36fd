"""The specc equivalents of other libraries' operations and options."""

from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn, TypeVar

from specc.diagnostics.diagnostic import Diagnostic, Fix, Label, SpeccError, raise_error
from specc.diagnostics.suggest import find_similar_name, format_suggestion, normalize_identifier
from specc.syntax import ast

FOREIGN_OPERATIONS = {
    # axes
    "reshape view flatten unflatten ravel pixelshuffle": "there is no general reshape: `split(x, "
    "into=[2, 4], axis=2)` splits an axis, `merge(x, axis=1)` merges adjacent axes, and "
    '`rearrange(x, "b n (h d) -> b h n d", sizes=[2])` does both',
    "unsqueeze expanddims newaxis": "insert an axis of length 1 with `x[:, none]`, or `insert(x, "
    "axis=1)`",
    "permute swapaxes moveaxis t mt": "permute axes with `transpose(x, order=[0, 2, 1])`; without "
    "`order` the last two are swapped",
    "cat concatenate hstack vstack": "concatenate with `concat([a, b], axis=1)`",
    "tile repeatinterleave broadcastto expandas broadcast": "an axis of length 1 is repeated by "
    "`expand(insert(x, axis=1), axis=1, length=3)`; sums and products broadcast it automatically",
    "slice narrow stridedslice getitem subscript": "slice with brackets: `x[:, 0:2]`, `x[:, 0]`; "
    "the last position is `last(x, axis=1)`",
    "indexselect gathernd take takealongdim lookup embeddinglookup": "gather by index with "
    "`gather(x, ids)`; embedding lookup is `embedding(ids, size=10, dim=8) @ words`",
    "shape dim ndim": "the length of an axis is `length(x, axis=1)`",
    "arange iota enumerate linspace": "`range(8)` gives the integers 0 to 7, `positions(x)` the "
    "position ids of a tensor",
    "index": "the position of a value in a list is `sum([i if xs[i] == 2 else 0 for i in "
    "len(xs)])`",
    "numel nelement": "the number of elements of a tensor is `size(x)`",
    # products and layers with weights
    "mm bmm gemm batchmatmul batchdot": "matrix multiplication is `matmul(a, transpose(b))`",
    "outer ger kron tensordot": 'an outer product is `einsum("b n i, b n j -> b n i j", a, b)`',
    "inner dotproduct vdot": "the sum of products is `dot(a, b)`",
    "dense fc fullyconnected addmm projection": "a linear layer is `linear(x, out=8) @ name`",
    "sequential modulelist moduledict stacklayers": "write a loop over layers as "
    '`repeat i in 3 { x = linear(x, out=8) @ "l.{i}" }`, and sequential layers as statements',
    "conv1d": "write `conv`: `conv(x, out=8, kernel=3, padding=same) @ c` keeps the length of "
    "the time axis of [batch, time, channels]",
    "conv2d convolution convolve depthwiseconv2d": "write `conv`: for an image [batch, channels, "
    "height, width] `conv(p, out=8, kernel=3) @ c` convolves both spatial axes",
    "deconv deconvolution convtranspose1d convtranspose2d": "a transposed convolution is "
    "`conv_transpose(x, out=8, kernel=2, stride=2) @ c`",
    "unfold im2col patchembed patchembedding": "patch embedding is `patches(p, size=4, out=8) @ c`",
    "maxpool maxpool1d maxpool2d maxpooling": "max pooling is `max_pool(p, kernel=2)`",
    "avgpool avgpool1d avgpool2d meanpool": "average pooling is `average_pool(p, kernel=2)`",
    "adaptiveavgpool2d adaptiveavgpool1d globalaveragepool globalavgpool": "global average pooling "
    "is `mean(mean(p, axis=-1), axis=-1)`, over positions `mean_pool(x)`, over unpadded "
    "positions `masked_mean_pool(x, keep)`",
    "interpolate upsample": "resize an image with `resize(p, size=[4, 4], mode=bilinear)`",
    "bilstm bidirectional bigru birnn": "bidirectional layers are `lstm(x, hidden=8, "
    "direction=both) @ rnn`, which return twice as many features",
    # attention
    "mha multiheadattention selfattention multiheadselfattention": "attention with its projections "
    "is `attention(x, heads=2, mask=all) @ name`",
    "crossattention encoderdecoderattention": "cross-attention is `attention(x, a, heads=2, "
    "mask=all) @ name`",
    "sdpa scaleddotproductattention flashattention": "attention without weights is `attend(q, k, "
    "v, mask=all)`",
    "softmaxcausal causalsoftmax causalattention maskedsoftmaxcausal": "causal attention is "
    "`attend(q, k, v, mask=causal)`; on precomputed scores `masked_softmax(matmul(q, "
    "transpose(k)), causal)`",
    "tril triu causalmask lookaheadmask": "masks are definitions: `mask=causal`, or define one: "
    "`mask near(n: int) = i - j < n`",
    "attentionmask paddingmask keypaddingmask": "the padding mask is an input, `keep[batch, n]`; "
    "apply it with `attend(q, k, v, mask=visible(keep))`",
    "positionalencoding positionencoding positionalembedding posemb": "position embeddings are "
    "`x + sinusoid(positions(x), dim=8, layout=halves)`, or learned embeddings: `x + "
    "learned(positions(keep), dim=8, size=64) @ places`",
    "applyrotaryposemb rotaryembedding applyrope": "RoPE on queries and keys is `rotate(q, "
    "positions(x), rope(theta=10000.0), pairs=half)`",
    "kvcache cache pastkeyvalues pastkeyvalue": "specs contain no caches: `specc compile --graphs "
    "step` derives them",
    "transformerencoderlayer transformerblock transformerlayer": "a Transformer layer is "
    "`encoder_layer(x, heads=2, hidden=16, act=relu, norm=layer_norm(eps=1e-5), "
    "norm_placement=post, mask=all) @ name`",
    # scalar functions
    "swish sigmoidlinearunit": "write `silu`, as in `silu(x)`, which is x * sigmoid(x)",
    "leakyrelu prelu rrelu": "write `where(x > 0.0, x, 0.01 * x)`, with your own slope",
    "celu": "write `elu(x)`",
    "selu": "write `1.0507 * (max(x, 0.0) + 1.67326 * expm1(min(x, 0.0)))`",
    "hardsigmoid": "write `clip(x / 6.0 + 0.5, low=0.0, high=1.0)`",
    "glu": "gate half of the features with the other half: `a * sigmoid(b)` with "
    "`a, b = chunk(x, 2)`",
    "swiglu geglu reglu": "a gated MLP is `gated_mlp(x, hidden=16, act=silu) @ mlp`, or "
    "with `act=gelu`",
    "clamp": "limit values to a range with `clip(x, low=0.0, high=1.0)`",
    "minimum fmin": "the elementwise minimum is `min(a, b)`",
    "maximum fmax": "the elementwise maximum is `max(a, b)`",
    "pow power square cube": "a power is `x ** 2.0`",
    "rsqrt invsqrt": "write `1.0 / sqrt(x)`",
    "log2": "write `log(x) / 0.6931471805599453`",
    "log10": "write `log(x) / 2.302585092994046`",
    "add sub subtract mul multiply div divide mod fmod": "write arithmetic with operators: `a + "
    "b`, `a - b`, `a * b`, `a / b`, `5 // 2`, `5 % 2`",
    "eq ne notequal lt less gt greater le ge": "write comparisons with operators: `a == b`, `a != "
    "b`, `a < b`, `a >= b`",
    "logicaland logicalor logicalnot bitwiseand bitwiseor": "combine booleans with "
    "operators: `seen & (x > 0.0)`, `seen | (x > 0.0)`, `not seen`",
    "astype to long half double typeas": "convert the element type with `cast(x, to=int)`",
    # operations along an axis
    "std var variance": "the standard deviation is "
    "`sqrt(mean((x - insert(mean(x, axis=-1), axis=-1)) ** 2.0, axis=-1))`",
    "logsoftmax": "write `log_softmax(x)`",
    "softmin": "write `softmax(-x)`",
    "norm l2norm normalize": "the L2 norm is `sqrt(sum(x * x, axis=-1))`; normalize with "
    "`l2_normalize(x)`",
    "prod product": "the product of positive numbers is `exp(sum(log(x), axis=-1))`",
    "cumprod": "the cumulative product of positive numbers is `exp(cumsum(log(x), axis=1))`",
    "argmin": "write `argmax(-x)`",
    "kthvalue topkvalues": "the largest values and their indices are `topk(x, 3)`",
    # selection, and creation of tensors
    "maskedfill select cond ifelse maskedselect": "select elementwise with `where(seen, x, 0.0)`",
    "nonzero argwhere unique booleanmask": "lengths cannot depend on values: `where(x > 0.0, x, "
    "0.0)` keeps the length",
    "scatter scatteradd indexadd bincount scatternd": "scatter with a matrix product: "
    "`matmul(transpose(one_hot(ids, size=10)), x)`",
    "zeroslike full fulllike empty emptylike": "write `zeros(shape=[2, 8])`, or `x * 0.0` for the "
    "shape of another tensor",
    "oneslike": "write `ones(shape=[2, 8])`, or `x * 0.0 + 1.0` for the shape of another tensor",
    "eye identitymatrix": "write `one_hot(range(8), size=8)`",
    "scalar tensor asarray array": "write a constant as a number: `x + 2.0`",
    "registerbuffer variable weight": "declare a parameter of any shape with `x + "
    'parameter(shape=[8], init="ones") @ gain`',
    # features that specs do not have
    "dropout1d dropout2d droppath stochasticdepth detach stopgradient contiguous clone copy "
    "checkpoint": "a spec describes inference: remove this call",
    "rand randn randint randnlike bernoulli multinomial": "a spec has no random numbers: noise "
    "is an input of the graph",
    "print assert log_tensor breakpoint": "output intermediate values with `specc compile --tap "
    "PATTERN`",
    "crossentropy crossentropyloss mseloss nllloss backward loss": "a spec has no loss: train its "
    "module (`specc_torch`) with a loss of PyTorch",
    "beamsearch greedysearch sample generate": "declare generation outside graphs with "
    "`generate`: see `specc doc generate` and docs/generation.md",
}
"""The suggestions for operations of other libraries. Keys are lists of names, separated by spaces.
"""

REPLACEMENTS_BY_NAME = {
    normalize_identifier(name): text
    for names, text in FOREIGN_OPERATIONS.items()
    for name in names.split()
}
"""The suggestion for each operation of other libraries, keyed by normalized name."""

FOREIGN_LIBRARIES = frozenset(
    {
        *("torch", "nn", "functional", "F", "tf", "keras", "layers", "ops"),
        *("np", "numpy", "jnp", "jax", "lax", "flax", "mx", "math"),
        *("einops", "transformers", "onnx", "self", "module", "model"),
    }
)
"""The module names of other libraries that precede a dot, as in `nn.Linear`."""

FOREIGN_OPTIONS = {
    "dim": "axis",
    "dims": "axis",
    "axes": "axis",
    "kernelsize": "kernel",
    "numheads": "heads",
    "nhead": "heads",
    "nheads": "heads",
    "numkvheads": "kv_heads",
    "outfeatures": "out",
    "outchannels": "out",
    "units": "out",
    "filters": "out",
    "hiddensize": "hidden",
    "hiddendim": "hidden",
    "dimfeedforward": "hidden",
    "intermediatesize": "hidden",
    "activation": "act",
    "numembeddings": "size",
    "vocabsize": "size",
    "embeddingdim": "dim",
    "epsilon": "eps",
    "numlayers": "layers",
    "numgroups": "groups",
    "softcap": "cap",
    "attnmask": "mask",
    "attentionmask": "mask",
    "min": "low",
    "max": "high",
    "repeats": "length",
    "shifts": "by",
    "extra": "output_padding",
    "counted": "count_include_pad",
    "ceil": "ceil_mode",
    "depth": "size",
    "numclasses": "size",
    "splitsizeorsections": "into",
    "dtype": "to",
}
"""The specc option for each option of another library, keyed by normalized name."""

RENAMED_STD_DEFINITIONS = {
    "around": "local_window",
    "as_grid": "tokens_to_feature_map",
    "asking": "query_mask",
    "between": "bilinear_weights",
    "bucket_of": "t5_relative_position_bucket",
    "by_distance": "relative_position_bias",
    "centered": "gaussian_window",
    "class_head": "classification_head",
    "distance_buckets": "t5_relative_position_bias",
    "ending": "trailing_window",
    "first_row": "cls_token",
    "from_greatest": "subtract_max",
    "gumbel": "gumbel_noise",
    "heads_joined": "merge_heads",
    "heads_of": "split_heads",
    "in_best_groups": "group_limited_topk",
    "kth_greatest": "kth_largest",
    "last_kept": "last_token",
    "masked_max": "masked_max_pool",
    "masked_mean": "masked_mean_pool",
    "mean_row": "mean_pool",
    "near_sound": "conv_position_embedding",
    "paint": "pixel_shuffle_head",
    "patch_rows": "patch_embed",
    "pixels_of": "unpatchify",
    "pooled_to": "adaptive_avg_pool2d",
    "sentence_of": "sentence_pooling",
    "shared_by": "repeat_kv",
    "shares": "adaptive_pool_weights",
    "shrunk_coordinate": "downscaled_coordinates",
    "shrunk_size": "downscaled_size",
    "sinusoid_grid": "sinusoid_2d",
    "sound_front": "conv_feature_extractor",
    "sound_layer": "wav2vec2_layer",
    "square_pair": "relative_position_index_2d",
    "squares": "relative_position_bias_2d",
    "sum_of_layers": "weighted_layer_sum",
    "summary_of": "sequence_summary",
    "tanh_pooler": "pooler",
    "time_norm": "masked_instance_norm",
    "time_statistics": "statistics_pooling",
    "token_head": "mlm_head",
    "unit": "l2_normalize",
    "unit_row": "l2_normalize",
    "upsampled": "upsample_bilinear",
}
"""The current names of renamed std definitions, by former name. An entry is removed one release
after the renaming.
"""


def suggest_replacement_name(name: str, known_names: Collection[str]) -> str:
    """Return a suggestion for the name of a foreign operation or a former std name, or ""."""
    if RENAMED_STD_DEFINITIONS.get(name) in known_names:
        return f"`{name}` is now `{RENAMED_STD_DEFINITIONS[name]}`"
    return REPLACEMENTS_BY_NAME.get(normalize_identifier(name), "")


def suggest_builtin_for_qualified_name(path: str, known_names: Collection[str]) -> str:
    """Return a suggestion for a path of another library, such as `nn.Linear`, or ""."""
    base, _, name = path.rpartition(".")
    if base.partition(".")[0] == "self":
        return "a spec has no modules: call the operation and name its weights, as in " + (
            "`layer_norm(x, eps=1e-5) @ norm` or `linear(x, out=8) @ proj`"
        )
    if fix := suggest_replacement_name(name, known_names):
        return fix
    similar_name = name if name in known_names else find_similar_name(name, known_names)
    return f"write `{similar_name}`; see `specc doc {similar_name}`" if similar_name else ""


OPTION_HELPS = {
    **dict.fromkeys(
        ("dropout", "attentiondropout", "attndropout", "dropoutp", "dropoutrate", "droppath"),
        "write `dropout(x, p=0.1)` where training drops values; compiled models do not contain it",
    ),
    **dict.fromkeys(
        ("keepdim", "keepdims"),
        "the sum removes the axis; insert it again: `insert(sum(x, axis=-1), axis=-1)`",
    ),
    **dict.fromkeys(("input", "inputs"), "inputs are positional: `f(x)`, in YAML `{f: {in: x}}`"),
    "name": "weight names follow `@`: `f(x) @ a`, in YAML `{f: {in: x, weights: a}}`",
    "heads": "the number of heads is inferred from the shape of the queries; remove the option",
    **dict.fromkeys(
        ("batchfirst", "training", "inplace", "device"),
        "remove the option: it does not change results",
    ),
    **dict.fromkeys(
        ("iscausal", "causal"), "write `mask=causal`, with padding `mask=causal & visible(keep)`"
    ),
}
"""The help messages for foreign options without an equivalent, keyed by normalized name."""


def raise_unknown_option_error(
    callee: str, option: ast.NamedArg, known_options: Collection[str]
) -> NoReturn:
    """Raise E0201 for an unknown option, with a fix if a known option is similar."""
    span = option.name_span or option.span
    options_text = (
        f"`{callee}` takes: {', '.join(known_options)}"
        if known_options
        else f"`{callee}` takes no options"
    )
    helps, fixes = (options_text,), tuple[Fix, ...]()
    if help_ := _get_option_help(option.name, known_options):
        helps = (help_,)
    elif similar_option := _find_similar_option(option.name, known_options):
        helps = (f"{format_suggestion(similar_option)} {options_text}",)
        fixes = (Fix(span, similar_option),) if span else ()
    title = f"unknown option `{option.name}` of `{callee}`"
    primary = Label.from_span(span, "unknown option")
    raise SpeccError(Diagnostic("E0201", title, primary, helps=helps, fixes=fixes))


ParameterT = TypeVar("ParameterT")


def match_options(
    callee: str,
    options: Iterable[ast.NamedArg],
    parameters: Mapping[str, ParameterT],
    bound_names: Collection[str],
) -> list[tuple[ParameterT, ast.Expr]]:
    """Pair options with the parameters that they set. Raise E0201 for an unknown option, and E0212
    for an option that is repeated or whose parameter is in `bound_names`.
    """
    pairs: dict[str, tuple[ParameterT, ast.Expr]] = {}
    for option in options:
        if option.name not in parameters:
            raise_unknown_option_error(callee, option, parameters)
        if option.name in bound_names or option.name in pairs:
            span = option.name_span or option.span
            raise_error("E0212", f"duplicate option `{option.name}`", span)
        pairs[option.name] = parameters[option.name], option.value
    return [*pairs.values()]


def _find_similar_option(name: str, known_options: Collection[str]) -> str:
    """Return the known option that an unknown option name probably means, or ""."""
    equivalent = FOREIGN_OPTIONS.get(normalize_identifier(name), "")
    return (
        equivalent if equivalent in known_options else find_similar_name(name, known_options) or ""
    )


def _get_option_help(name: str, known_options: Collection[str]) -> str:
    """Return the help message for a foreign option that has no equivalent in specc, or ""."""
    key = normalize_identifier(name)
    key = "heads" if "head" in key else key
    has_equivalent = bool({key, FOREIGN_OPTIONS.get(key)} & {*known_options})
    return "" if has_equivalent else OPTION_HELPS.get(key, "")
