"""Table of operation names in PyTorch, NumPy, TensorFlow and einops, and their equivalents."""

from typing import NamedTuple


class ForeignOperation(NamedTuple):
    """What to write instead, the functions it uses, and the foreign names."""

    text: str
    needs: tuple[str, ...]
    names: tuple[str, ...]


FOREIGN_OPERATIONS = (
    # axes
    ForeignOperation(
        "there is no general reshape: `split(x, into=[2, 4], axis=2)` splits an axis, "
        "`merge(x, axis=1)` joins neighbors, and "
        '`rearrange(x, "b n (h d) -> b h n d", sizes=[2])` does both',
        ("split", "merge", "rearrange"),
        ("reshape", "view", "flatten", "unflatten", "ravel", "pixelshuffle"),
    ),
    ForeignOperation(
        "insert an axis of length 1 with `x[:, none]`, or `insert(x, axis=1)`",
        ("insert",),
        ("unsqueeze", "expanddims", "newaxis"),
    ),
    ForeignOperation(
        "permute axes with `transpose(x, order=[0, 2, 1])`; without `order` the "
        "last two change places",
        ("transpose",),
        ("permute", "swapaxes", "moveaxis", "t", "mt"),
    ),
    ForeignOperation(
        "concatenate with `concat([a, b], axis=1)`",
        ("concat",),
        ("cat", "concatenate", "hstack", "vstack"),
    ),
    ForeignOperation(
        "an axis of length 1 is repeated by `expand(insert(x, axis=1), axis=1, length=3)`; "
        "sums and products repeat it by themselves",
        ("expand", "insert"),
        ("tile", "repeatinterleave", "broadcastto", "expandas", "broadcast"),
    ),
    ForeignOperation(
        "slice with brackets: `x[:, 0:2]`, `x[:, 0]`; the last position is `last(x, axis=1)`",
        ("last",),
        ("slice", "narrow", "stridedslice", "getitem", "subscript"),
    ),
    ForeignOperation(
        "gather by index with `gather(x, ids)`; embedding lookup is "
        "`embedding(ids, size=10, dim=8) @ words`",
        ("gather", "embedding"),
        ("indexselect", "gathernd", "take", "takealongdim", "lookup", "embeddinglookup"),
    ),
    ForeignOperation(
        "how long an axis is, is `length(x, axis=1)`", ("length",), ("shape", "dim", "ndim")
    ),
    ForeignOperation(
        "`range(8)` are the integers below 8, `positions(x)` the position ids of a tensor",
        ("range", "positions"),
        ("arange", "iota", "enumerate", "linspace"),
    ),
    ForeignOperation(
        "the number of elements of a tensor is `size(x)`", ("size",), ("numel", "nelement")
    ),
    # products and layers with weights
    ForeignOperation(
        "a product of matrices is `matmul(a, transpose(b))`",
        ("matmul",),
        ("mm", "bmm", "gemm", "batchmatmul", "batchdot"),
    ),
    ForeignOperation(
        'an outer product is `einsum("b n i, b n j -> b n i j", a, b)`',
        ("einsum",),
        ("outer", "ger", "kron", "tensordot"),
    ),
    ForeignOperation(
        "the sum of products is `dot(a, b)`", ("dot",), ("inner", "dotproduct", "vdot")
    ),
    ForeignOperation(
        "a map with weights is `linear(x, out=8) @ name`",
        ("linear",),
        ("dense", "fc", "fullyconnected", "addmm", "projection"),
    ),
    ForeignOperation(
        'a layer per index is `repeat i in 3 { x = linear(x, out=8) @ "l.{i}" }`; '
        "sequential layers are consecutive statements",
        ("linear",),
        ("sequential", "modulelist", "moduledict", "stacklayers"),
    ),
    ForeignOperation(
        "write `conv`: `conv(x, out=8, kernel=3, padding=same) @ c` keeps the length of "
        "positions of [batch, time, channels]",
        ("conv",),
        ("conv1d",),
    ),
    ForeignOperation(
        "write `conv`: for an image [batch, channels, height, width] "
        "`conv(p, out=8, kernel=3) @ c` goes over both axes",
        ("conv",),
        ("conv2d", "convolution", "convolve", "depthwiseconv2d"),
    ),
    ForeignOperation(
        "the opposite of a convolution is `conv_transpose(x, out=8, kernel=2, stride=2) @ c`",
        ("conv_transpose",),
        ("deconv", "deconvolution", "convtranspose1d", "convtranspose2d"),
    ),
    ForeignOperation(
        "patch embedding is `patches(p, size=4, out=8) @ c`",
        ("patches",),
        ("unfold", "im2col", "patchembed", "patchembedding"),
    ),
    ForeignOperation(
        "max pooling is `max_pool(p, kernel=2)`",
        ("max_pool",),
        ("maxpool", "maxpool1d", "maxpool2d", "maxpooling"),
    ),
    ForeignOperation(
        "the mean of each window is `average_pool(p, kernel=2)`",
        ("average_pool",),
        ("avgpool", "avgpool1d", "avgpool2d", "meanpool"),
    ),
    ForeignOperation(
        "global average pooling is `mean(mean(p, axis=-1), axis=-1)`, over positions "
        "`mean_pool(x)`, over unpadded positions `masked_mean_pool(x, keep)`",
        ("mean", "mean_pool", "masked_mean_pool"),
        ("adaptiveavgpool2d", "adaptiveavgpool1d", "globalaveragepool", "globalavgpool"),
    ),
    ForeignOperation(
        "resize an image with `resize(p, size=[4, 4], mode=bilinear)`",
        ("resize",),
        ("interpolate", "upsample"),
    ),
    ForeignOperation(
        "bidirectional layers are `lstm(x, hidden=8, direction=both) @ rnn`, which return "
        "twice as many features",
        ("lstm",),
        ("bilstm", "bidirectional", "bigru", "birnn"),
    ),
    # attention
    ForeignOperation(
        "attention with its projections is `attention(x, heads=2, mask=all) @ name`",
        ("attention",),
        ("mha", "multiheadattention", "selfattention", "multiheadselfattention"),
    ),
    ForeignOperation(
        "cross-attention is `attention(x, a, heads=2, mask=all) @ name`",
        ("attention",),
        ("crossattention", "encoderdecoderattention"),
    ),
    ForeignOperation(
        "attention without weights is `attend(q, k, v, mask=all)`",
        ("attend",),
        ("sdpa", "scaleddotproductattention", "flashattention"),
    ),
    ForeignOperation(
        "causal attention is `attend(q, k, v, mask=causal)`; on precomputed scores "
        "`masked_softmax(matmul(q, transpose(k)), causal)`",
        ("attend", "masked_softmax", "causal"),
        ("softmaxcausal", "causalsoftmax", "causalattention", "maskedsoftmaxcausal"),
    ),
    ForeignOperation(
        "masks are functions: `mask=causal`, or one of your own, `mask near(n: int) = i - j < n`",
        ("causal",),
        ("tril", "triu", "causalmask", "lookaheadmask"),
    ),
    ForeignOperation(
        "the padding mask is an input, `keep[batch, n]`; apply it with "
        "`attend(q, k, v, mask=visible(keep))`",
        ("attend", "visible"),
        ("attentionmask", "paddingmask", "keypaddingmask"),
    ),
    ForeignOperation(
        "positions are added: `x + sinusoid(positions(x), dim=8, layout=halves)`, or "
        "learned positions are `x + learned(positions(keep), dim=8, size=64) @ places`",
        ("sinusoid", "learned", "positions"),
        ("positionalencoding", "positionencoding", "positionalembedding", "posemb"),
    ),
    ForeignOperation(
        "RoPE on queries and keys is `rotate(q, positions(x), rope(theta=10000.0), pairs=half)`",
        ("rotate", "rope"),
        ("applyrotaryposemb", "rotaryembedding", "applyrope"),
    ),
    ForeignOperation(
        "specs contain no caches: `specc compile --graphs step` derives them",
        (),
        ("kvcache", "cache", "pastkeyvalues", "pastkeyvalue"),
    ),
    ForeignOperation(
        "a layer of the Transformer is "
        "`encoder_layer(x, heads=2, hidden=16, act=relu, norm=layer_norm(eps=1e-5), "
        "norm_placement=post, mask=all) @ name`",
        ("encoder_layer",),
        ("transformerencoderlayer", "transformerblock", "transformerlayer"),
    ),
    # scalar functions
    ForeignOperation(
        "write `silu`, as in `silu(x)`: x times its sigmoid",
        ("silu",),
        ("swish", "sigmoidlinearunit"),
    ),
    ForeignOperation(
        "write `where(x > 0.0, x, 0.01 * x)`, with your own slope",
        ("where",),
        ("leakyrelu", "prelu", "rrelu"),
    ),
    ForeignOperation(
        "that is `max(x, 0.0) + expm1(min(x, 0.0))`", ("max", "expm1", "min"), ("elu", "celu")
    ),
    ForeignOperation(
        "that is `1.0507 * (max(x, 0.0) + 1.67326 * expm1(min(x, 0.0)))`",
        ("max", "expm1", "min"),
        ("selu",),
    ),
    ForeignOperation(
        "that is `clip(x / 6.0 + 0.5, low=0.0, high=1.0)`", ("clip",), ("hardsigmoid",)
    ),
    ForeignOperation(
        "gate one half of the features with the other: `a * sigmoid(b)` of `a, b = chunk(x, 2)`",
        ("sigmoid", "chunk"),
        ("glu",),
    ),
    ForeignOperation(
        "a network with a gate is `gated_mlp(x, hidden=16, act=silu) @ mlp`, or with `act=gelu`",
        ("gated_mlp",),
        ("swiglu", "geglu", "reglu"),
    ),
    ForeignOperation("no less and no more is `clip(x, low=0.0, high=1.0)`", ("clip",), ("clamp",)),
    ForeignOperation("of two tensors that is `min(a, b)`", ("min",), ("minimum", "fmin")),
    ForeignOperation("of two tensors that is `max(a, b)`", ("max",), ("maximum", "fmax")),
    ForeignOperation("a power is `x ** 2.0`", (), ("pow", "power", "square", "cube")),
    ForeignOperation("that is `1.0 / sqrt(x)`", ("sqrt",), ("rsqrt", "invsqrt")),
    ForeignOperation("that is `log(x) / 0.6931471805599453`", ("log",), ("log2",)),
    ForeignOperation("that is `log(x) / 2.302585092994046`", ("log",), ("log10",)),
    ForeignOperation(
        "write arithmetic with operators: `a + b`, `a - b`, `a * b`, `a / b`, `5 // 2`, `5 % 2`",
        (),
        ("add", "sub", "subtract", "mul", "multiply", "div", "divide", "mod", "fmod"),
    ),
    ForeignOperation(
        "write comparisons with operators: `a == b`, `a != b`, `a < b`, `a >= b`",
        (),
        ("eq", "ne", "notequal", "lt", "less", "gt", "greater", "le", "ge"),
    ),
    ForeignOperation(
        "boolean operators are: `seen & (x > 0.0)`, `seen | (x > 0.0)`, `not seen`",
        (),
        ("logicaland", "logicalor", "logicalnot", "bitwiseand", "bitwiseor"),
    ),
    ForeignOperation(
        "convert the element type with `cast(x, to=int)`",
        ("cast",),
        ("astype", "to", "long", "half", "double", "typeas"),
    ),
    # along an axis
    ForeignOperation(
        "the spread is `sqrt(mean((x - insert(mean(x, axis=-1), axis=-1)) ** 2.0, axis=-1))`",
        ("mean", "sqrt"),
        ("std", "var", "variance"),
    ),
    ForeignOperation("that is `log_softmax(x)`", ("log_softmax",), ("logsoftmax",)),
    ForeignOperation("that is `softmax(-x)`", ("softmax",), ("softmin",)),
    ForeignOperation(
        "the L2 norm is `sqrt(sum(x * x, axis=-1))`; normalize with `l2_normalize(x)`",
        ("sqrt", "sum", "l2_normalize"),
        ("norm", "l2norm", "normalize"),
    ),
    ForeignOperation(
        "positive numbers are multiplied by `exp(sum(log(x), axis=-1))`",
        ("exp", "sum", "log"),
        ("prod", "product"),
    ),
    ForeignOperation(
        "positive numbers are multiplied by `exp(cumsum(log(x), axis=1))`",
        ("exp", "cumsum", "log"),
        ("cumprod",),
    ),
    ForeignOperation("that is `argmax(-x)`", ("argmax",), ("argmin",)),
    ForeignOperation(
        "the largest values and their indices are `topk(x, 3)`",
        ("topk",),
        ("kthvalue", "topkvalues"),
    ),
    # choosing and filling
    ForeignOperation(
        "select elementwise with `where(seen, x, 0.0)`",
        ("where",),
        ("maskedfill", "select", "cond", "ifelse", "maskedselect"),
    ),
    ForeignOperation(
        "lengths cannot depend on values: `where(x > 0.0, x, 0.0)` keeps the length",
        ("where",),
        ("nonzero", "argwhere", "unique", "booleanmask"),
    ),
    ForeignOperation(
        "scatter with a matrix product: `matmul(transpose(one_hot(ids, size=10)), x)`",
        ("matmul", "one_hot"),
        ("scatter", "scatteradd", "indexadd", "bincount", "scatternd"),
    ),
    ForeignOperation(
        "write `zeros(shape=[2, 8])`, or `x * 0.0` for the shape of another tensor",
        ("zeros",),
        ("zeroslike", "full", "fulllike", "empty", "emptylike"),
    ),
    ForeignOperation(
        "write `ones(shape=[2, 8])`, or `x * 0.0 + 1.0` for the shape of another tensor",
        ("ones",),
        ("oneslike",),
    ),
    ForeignOperation(
        "that is `one_hot(range(8), size=8)`", ("one_hot", "range"), ("eye", "identitymatrix")
    ),
    ForeignOperation(
        "write a constant as a number: `x + 2.0`", (), ("scalar", "tensor", "asarray", "array")
    ),
    ForeignOperation(
        'declare a parameter of any shape with `x + parameter(shape=[8], init="ones") @ gain`',
        ("parameter",),
        ("registerbuffer", "variable", "weight"),
    ),
    # features that a spec does not have
    ForeignOperation(
        "a spec describes inference: leave it out",
        (),
        (
            "dropout1d",
            "dropout2d",
            "droppath",
            "stochasticdepth",
            "detach",
            "stopgradient",
            "contiguous",
            "clone",
            "copy",
            "checkpoint",
        ),
    ),
    ForeignOperation(
        "a spec draws no numbers: noise is an input of the graph",
        (),
        ("rand", "randn", "randint", "randnlike", "bernoulli", "multinomial"),
    ),
    ForeignOperation(
        "output intermediate values with `specc compile --tap PATTERN`",
        (),
        ("print", "assert", "log_tensor", "breakpoint"),
    ),
    ForeignOperation(
        "a spec has no loss: train its module (`specc_torch`) with a loss of PyTorch",
        (),
        ("crossentropy", "crossentropyloss", "mseloss", "nllloss", "backward", "loss"),
    ),
    ForeignOperation(
        "declare generation outside of graphs with `generate`: see `specc doc generate` and "
        "docs/generation.md",
        (),
        ("beamsearch", "greedysearch", "sample", "generate"),
    ),
)
