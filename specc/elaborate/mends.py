"""What operations are called elsewhere, and what is written here instead: the table.

Every text between backticks that holds a bracket is a whole piece of the language: a
test compiles each of them.
"""

from typing import NamedTuple


class Mend(NamedTuple):
    """What to write, the words and blocks that it needs, and the names it goes by."""

    text: str
    needs: tuple[str, ...]
    names: tuple[str, ...]


MENDS = (
    # axes
    Mend(
        "there is no general reshape: `split(x, into=[2, 4], axis=2)` parts an axis, "
        "`merge(x, axis=1)` joins neighbors, and "
        '`rearrange(x, "b n (h d) -> b h n d", sizes=[2])` does both',
        ("split", "merge", "rearrange"),
        ("reshape", "view", "flatten", "unflatten", "ravel", "pixelshuffle"),
    ),
    Mend(
        "a new axis of length 1 is `x[:, none]`, or `insert(x, axis=1)`",
        ("insert",),
        ("unsqueeze", "expanddims", "newaxis"),
    ),
    Mend(
        "axes in another order are `transpose(x, order=[0, 2, 1])`; without `order` the "
        "last two change places",
        ("transpose",),
        ("permute", "swapaxes", "moveaxis", "t", "mt"),
    ),
    Mend(
        "tensors one after the other are `concat([a, b], axis=1)`",
        ("concat",),
        ("cat", "concatenate", "hstack", "vstack"),
    ),
    Mend(
        "an axis of length 1 is repeated by `expand(insert(x, axis=1), axis=1, length=3)`; "
        "sums and products repeat it by themselves",
        ("expand", "insert"),
        ("tile", "repeatinterleave", "broadcastto", "expandas", "broadcast"),
    ),
    Mend(
        "rows are taken by brackets: `x[:, 0:2]`, `x[:, 0]`, the newest by `last(x, axis=1)`",
        ("last",),
        ("slice", "narrow", "stridedslice", "getitem", "subscript"),
    ),
    Mend(
        "rows by computed numbers are `gather(x, ids)`, rows of a table of weights "
        "`embedding(ids, size=10, dim=8) @ words`",
        ("gather", "embedding"),
        (
            "indexselect",
            "gathernd",
            "take",
            "takealongdim",
            "lookup",
            "embeddinglookup",
        ),
    ),
    Mend(
        "how long an axis is, is `length(x, axis=1)`",
        ("length",),
        ("shape", "dim", "ndim"),
    ),
    Mend(
        "the numbers below n are `range(8)`, the row numbers of a tensor `positions(x)`",
        ("range", "positions"),
        ("arange", "iota", "enumerate", "linspace"),
    ),
    Mend(
        "how many numbers a tensor holds is `size(x)`",
        ("size",),
        ("numel", "nelement"),
    ),
    # products and layers with weights
    Mend(
        "a product of matrices is `matmul(a, transpose(b))`",
        ("matmul",),
        ("mm", "bmm", "gemm", "batchmatmul", "batchdot"),
    ),
    Mend(
        'an outer product is `einsum("b n i, b n j -> b n i j", a, b)`',
        ("einsum",),
        ("outer", "ger", "kron", "tensordot"),
    ),
    Mend(
        "the sum of products is `dot(a, b)`", ("dot",), ("inner", "dotproduct", "vdot")
    ),
    Mend(
        "a map with weights is `linear(x, out=8) @ name`",
        ("linear",),
        ("dense", "fc", "fullyconnected", "addmm", "projection"),
    ),
    Mend(
        'a layer for each number is `repeat i in 3 { x = linear(x, out=8) @ "l.{i}" }`; '
        "what stands one after the other is written so",
        ("linear",),
        ("sequential", "modulelist", "moduledict", "stacklayers"),
    ),
    Mend(
        "write `conv`: `conv(x, out=8, kernel=3, padding=same) @ c` keeps the length of "
        "rows [batch, time, channels]",
        ("conv",),
        ("conv1d",),
    ),
    Mend(
        "write `conv`: of a picture [batch, channels, high, wide] "
        "`conv(p, out=8, kernel=3) @ c` goes over both axes",
        ("conv",),
        ("conv2d", "convolution", "convolve", "depthwiseconv2d"),
    ),
    Mend(
        "the opposite of a convolution is `conv_transpose(x, out=8, kernel=2, stride=2) @ c`",
        ("conv_transpose",),
        ("deconv", "deconvolution", "convtranspose1d", "convtranspose2d"),
    ),
    Mend(
        "squares of a picture as rows are `patches(p, size=4, out=8) @ c`",
        ("patches",),
        ("unfold", "im2col", "patchembed", "patchembedding"),
    ),
    Mend(
        "the greatest of each window is `max_pool(p, kernel=2)`",
        ("max_pool",),
        ("maxpool", "maxpool1d", "maxpool2d", "maxpooling"),
    ),
    Mend(
        "the mean of each window is `average_pool(p, kernel=2)`",
        ("average_pool",),
        ("avgpool", "avgpool1d", "avgpool2d", "meanpool"),
    ),
    Mend(
        "the mean over a whole picture is `mean(mean(p, axis=-1), axis=-1)`, over rows "
        "`mean_row(x)`, over kept rows `masked_mean(x, keep)`",
        ("mean", "mean_row", "masked_mean"),
        (
            "adaptiveavgpool2d",
            "adaptiveavgpool1d",
            "globalaveragepool",
            "globalavgpool",
        ),
    ),
    Mend(
        "a picture of another size is `resize(p, size=[4, 4], mode=bilinear)`",
        ("resize",),
        ("interpolate", "upsample"),
    ),
    Mend(
        "both directions are `lstm(x, hidden=8, direction=both) @ rnn`, which gives "
        "outputs of twice the width",
        ("lstm",),
        ("bilstm", "bidirectional", "bigru", "birnn"),
    ),
    # attention
    Mend(
        "attention with its projections is `attention(x, heads=2, mask=all) @ name`",
        ("attention",),
        ("mha", "multiheadattention", "selfattention", "multiheadselfattention"),
    ),
    Mend(
        "attention to another's rows is `attention(x, a, heads=2, mask=all) @ name`",
        ("attention",),
        ("crossattention", "encoderdecoderattention"),
    ),
    Mend(
        "attention without weights is `attend(q, k, v, mask=all)`",
        ("attend",),
        ("sdpa", "scaleddotproductattention", "flashattention"),
    ),
    Mend(
        "attention that looks back only is `attend(q, k, v, mask=causal)`; of scores that "
        "are there `masked_softmax(matmul(q, transpose(k)), causal)`",
        ("attend", "masked_softmax", "causal"),
        ("softmaxcausal", "causalsoftmax", "causalattention", "maskedsoftmaxcausal"),
    ),
    Mend(
        "who sees whom is a mask: `mask=causal`, or one of your own, "
        "`mask near(n: int) = i - j < n`",
        ("causal",),
        ("tril", "triu", "causalmask", "lookaheadmask"),
    ),
    Mend(
        "rows that exist are an input, `keep[batch, n]`; the mask of them is "
        "`attend(q, k, v, mask=visible(keep))`",
        ("attend", "visible"),
        ("attentionmask", "paddingmask", "keypaddingmask"),
    ),
    Mend(
        "positions are added: `x + sinusoid(positions(x), dim=8, layout=halves)`, or "
        "learned ones, `x + learned(positions(keep), dim=8, size=64) @ places`",
        ("sinusoid", "learned", "positions"),
        ("positionalencoding", "positionencoding", "positionalembedding", "posemb"),
    ),
    Mend(
        "queries and keys are turned by "
        "`rotate(q, positions(x), rope(theta=10000.0), pairs=half)`",
        ("rotate", "rope"),
        ("applyrotaryposemb", "rotaryembedding", "applyrope"),
    ),
    Mend(
        "a spec says nothing of caches: `specc compile --for step` derives them",
        (),
        ("kvcache", "cache", "pastkeyvalues", "pastkeyvalue"),
    ),
    Mend(
        "a layer of the Transformer is "
        "`encoder_layer(x, heads=2, hidden=16, act=relu, norm=layer_norm(eps=1e-5), "
        "place=post, mask=all) @ name`",
        ("encoder_layer",),
        ("transformerencoderlayer", "transformerblock", "transformerlayer"),
    ),
    # functions of a number
    Mend("x times its sigmoid is `silu(x)`", ("silu",), ("swish", "sigmoidlinearunit")),
    Mend(
        "that is `where(x > 0.0, x, 0.01 * x)`, with your own slope",
        ("where",),
        ("leakyrelu", "prelu", "rrelu"),
    ),
    Mend(
        "that is `max(x, 0.0) + expm1(min(x, 0.0))`",
        ("max", "expm1", "min"),
        ("elu", "celu"),
    ),
    Mend(
        "that is `1.0507 * (max(x, 0.0) + 1.67326 * expm1(min(x, 0.0)))`",
        ("max", "expm1", "min"),
        ("selu",),
    ),
    Mend(
        "that is `clip(x / 6.0 + 0.5, low=0.0, high=1.0)`", ("clip",), ("hardsigmoid",)
    ),
    Mend(
        "half of the features gate the other: `a * sigmoid(b)` of `a, b = chunk(x, 2)`",
        ("sigmoid", "chunk"),
        ("glu",),
    ),
    Mend(
        "a network with a gate is `gated_mlp(x, hidden=16, act=silu) @ mlp`, or with "
        "`act=gelu`",
        ("gated_mlp",),
        ("swiglu", "geglu", "reglu"),
    ),
    Mend("no less and no more is `clip(x, low=0.0, high=1.0)`", ("clip",), ("clamp",)),
    Mend("of two tensors that is `min(a, b)`", ("min",), ("minimum", "fmin")),
    Mend("of two tensors that is `max(a, b)`", ("max",), ("maximum", "fmax")),
    Mend("a power is `x ** 2.0`", (), ("pow", "power", "square", "cube")),
    Mend("that is `1.0 / sqrt(x)`", ("sqrt",), ("rsqrt", "invsqrt")),
    Mend("that is `log(x) / 0.6931471805599453`", ("log",), ("log2",)),
    Mend("that is `log(x) / 2.302585092994046`", ("log",), ("log10",)),
    Mend(
        "arithmetic is written with signs: `a + b`, `a - b`, `a * b`, `a / b`, `5 // 2`, "
        "`5 % 2`",
        (),
        ("add", "sub", "subtract", "mul", "multiply", "div", "divide", "mod", "fmod"),
    ),
    Mend(
        "comparisons are written with signs: `a == b`, `a != b`, `a < b`, `a >= b`",
        (),
        ("eq", "ne", "notequal", "lt", "less", "gt", "greater", "le", "ge"),
    ),
    Mend(
        "truth is joined by signs: `seen & (x > 0.0)`, `seen | (x > 0.0)`, `not seen`",
        (),
        ("logicaland", "logicalor", "logicalnot", "bitwiseand", "bitwiseor"),
    ),
    Mend(
        "another kind of numbers is `cast(x, to=int)`",
        ("cast",),
        ("astype", "to", "long", "half", "double", "typeas"),
    ),
    # along an axis
    Mend(
        "the spread is "
        "`sqrt(mean((x - insert(mean(x, axis=-1), axis=-1)) ** 2.0, axis=-1))`",
        ("mean", "sqrt"),
        ("std", "var", "variance"),
    ),
    Mend("that is `log_softmax(x)`", ("log_softmax",), ("logsoftmax",)),
    Mend("that is `softmax(-x)`", ("softmax",), ("softmin",)),
    Mend(
        "a vector's length is `sqrt(sum(x * x, axis=-1))`; each made 1 long is "
        "`unit_row(x)`",
        ("sqrt", "sum", "unit_row"),
        ("norm", "l2norm", "normalize"),
    ),
    Mend(
        "positive numbers are multiplied by `exp(sum(log(x), axis=-1))`",
        ("exp", "sum", "log"),
        ("prod", "product"),
    ),
    Mend(
        "positive numbers are multiplied by `exp(cumsum(log(x), axis=1))`",
        ("exp", "cumsum", "log"),
        ("cumprod",),
    ),
    Mend("that is `argmax(-x)`", ("argmax",), ("argmin",)),
    Mend(
        "the greatest and their numbers are `topk(x, 3)`",
        ("topk",),
        ("kthvalue", "topkvalues"),
    ),
    # choosing and filling
    Mend(
        "a choice at each place is `where(seen, x, 0.0)`",
        ("where",),
        ("maskedfill", "select", "cond", "ifelse", "maskedselect"),
    ),
    Mend(
        "how many there are is never decided by values: `where(x > 0.0, x, 0.0)` keeps "
        "the length",
        ("where",),
        ("nonzero", "argwhere", "unique", "booleanmask"),
    ),
    Mend(
        "rows are put by a product: `matmul(transpose(one_hot(ids, size=10)), x)`",
        ("matmul", "one_hot"),
        ("scatter", "scatteradd", "indexadd", "bincount", "scatternd"),
    ),
    Mend(
        "that is `zeros(shape=[2, 8])`, and of the shape of another `x * 0.0`",
        ("zeros",),
        ("zeroslike", "full", "fulllike", "empty", "emptylike"),
    ),
    Mend(
        "that is `ones(shape=[2, 8])`, and of the shape of another `x * 0.0 + 1.0`",
        ("ones",),
        ("oneslike",),
    ),
    Mend(
        "that is `one_hot(range(8), size=8)`",
        ("one_hot", "range"),
        ("eye", "identitymatrix"),
    ),
    Mend(
        "a number that is given is written as it is: `x + 2.0`",
        (),
        ("scalar", "tensor", "asarray", "array"),
    ),
    Mend(
        'weights of any shape are `x + parameter(shape=[8], init="ones") @ gain`',
        ("parameter",),
        ("registerbuffer", "variable", "weight"),
    ),
    # what a spec does not say
    Mend(
        "a spec says what a trained model computes: leave it out",
        (),
        (
            "dropout",
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
    Mend(
        "a spec draws no numbers: noise is an input of the graph",
        (),
        ("rand", "randn", "randint", "randnlike", "bernoulli", "multinomial"),
    ),
    Mend(
        "inner values are seen by `specc compile --tap PATTERN`",
        (),
        ("print", "assert", "log_tensor", "breakpoint"),
    ),
    Mend(
        "a spec has no loss: train its module (`specc_torch`) with one of PyTorch's",
        (),
        ("crossentropy", "crossentropyloss", "mseloss", "nllloss", "backward", "loss"),
    ),
    Mend(
        "writing is told outside of graphs: `generate`, as in `specc doc generate` and "
        "docs/generation.md",
        (),
        ("beamsearch", "greedysearch", "sample", "generate"),
    ),
)
