"""Random specs with a padded axis, and the effect of padding on their results.

A spec has `x: float[batch, n, 4]` and `keep: keep[batch, n]` and combines attention, windows,
padding, slices, running sums, divisions, normalizers and pooling. The float64 reference runs it on
one sequence alone, then on the same sequence with other amounts, sides and values of padding; valid
positions must not change.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

import specc_numpy
from specc.analysis.padding_check import check_padding
from specc.diagnostics.diagnostic import Source, SpeccError
from specc.driver.spec_loader import open_spec
from specc.frontend.spec_to_graph import elaborate_model
from specc.ir import ops
from specc.ir.graph import Graph
from support.padded_layer_forms import LAYERS, MIXERS, SUMMARIES, read_forms

LAYER_FORMS, MIXER_FORMS, SUMMARY_FORMS = map(read_forms, (LAYERS, MIXERS, SUMMARIES))
SIDES = ("left", "right", "")
PADDINGS = ((1, 0), (4, 0), (0, 2), (2, 3), (0, 5))
"""Padded positions before and after the valid ones."""
LENGTHS = (5, 6)
"""Numbers of valid positions; with a stride, even and odd numbers differ."""
SHORT_LENGTHS = (1, 2)
"""Numbers of valid positions in batches whose shortest length `n` is larger."""
MIN_LENGTH = 5

INPUTS = ((1.0, 0.0), (1.0, -4.0), (0.1, 4.0), (1.0, 1e5), (1.0, -1e5), (1e10, -1e11))
"""Scale and shift of inputs that may show an effect which the default inputs do not show: maxima
hide effects, and scores near -1e4 show them.
"""

MAX_VALUE = 1e100
"""Values above this are excluded, as `check` documents."""

HEADER = """specc 1
model m
dims batch, n >= 5
normalizer own(s) = softmax(s, axis=-1)
normalizer sharp(s, by: float = 1.5) = softmax(by * s, axis=-1)
graph g(x: float[batch, n, 4], keep: keep[batch, n] {side}) -> (y: float[{shape}]) {{
"""


@dataclass(frozen=True)
class Stream:
    """A value [batch, length, 4] and the mask [batch, length] of its positions; values with equal
    `length` have equal lengths.
    """

    name: str
    keep: str
    length: str


@dataclass(frozen=True)
class PaddedSpec:
    """A spec. With `replaced` its padded input positions may contain NaN; with `shorter` a window
    or slice may leave no valid positions.
    """

    text: str
    side: str
    replaced: bool
    shorter: bool = False


@dataclass
class SpecWriter:
    """Write random statements, one at a time."""

    rng: random.Random
    lines: list[str] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    count: int = 0

    def name(self, letter: str = "t") -> str:
        """Return an unused name."""
        self.count += 1
        return f"{letter}{self.count}"

    def let(self, expression: str) -> str:
        """Write a statement and return the name of its value."""
        name = self.name()
        self.lines.append(f"{name} = {expression}")
        return name

    def add(self, expression: str, like: Stream) -> None:
        """Write a statement whose value has the length and mask of another stream."""
        self.streams.append(Stream(self.let(expression), like.keep, like.length))

    def pick(self) -> Stream:
        """Return a stream, most often a recent one."""
        if self.rng.random() < 0.6:
            return self.streams[-1]
        return self.rng.choice(self.streams)

    def step(self) -> None:
        """Write one or more statements that add a stream."""
        kinds, weights = zip(*STEPS, strict=True)
        x = self.pick()
        self.rng.choices(kinds, weights)[0](self, x)

    def weight(self, x: Stream) -> str:
        """Return the mask of a stream as [batch, length, 1] floats."""
        return f"insert(cast({x.keep}, to=float), axis=2)"

    def hidden(self, x: Stream) -> str:
        """Return the mask of a stream as [batch, length, 1]."""
        return f"insert({x.keep}, axis=2)"


def write_elementwise(w: SpecWriter, x: Stream) -> None:
    """Add a function of one stream, position by position."""
    forms = (
        "tanh({0})",
        "relu({0})",
        "exp(tanh({0}))",
        "{0} * {0}",
        "abs({0})",
        "sigmoid({0})",
        "{0} + 1.0",
        "{0} * 0.5",
        "exp({0})",
        "linear({0}, out=4) @ w{1}",
        "{0} + (linear({0}, out=4, bias=false) @ w{1})",
        "layer_norm({0}, eps=1e-5) @ w{1}",
        "rms_norm({0}, eps=1e-5) @ w{1}",
    )
    w.add(w.rng.choice(forms).format(x.name, w.count), x)


def write_pair(w: SpecWriter, x: Stream) -> None:
    """Add a function of two streams of equal length."""
    alike = [s for s in w.streams if s.length == x.length]
    y = w.rng.choice(alike)
    forms = ("{0} + {1}", "{0} * {1}", "max({0}, {1})", "{0} + tanh({1})", "{0} - 0.5 * {1}")
    w.add(w.rng.choice(forms).format(x.name, y.name), x)


def write_zeroed(w: SpecWriter, x: Stream) -> None:
    """Add a stream whose padded positions are replaced by or multiplied by zero."""
    fill = w.rng.choice(("0.0", "0.0", "0.0", "1.0", "-inf", "-1e30"))
    if w.rng.random() < 0.4:
        return w.add(f"{x.name} * {w.weight(x)}", x)
    w.add(f"where({w.hidden(x)}, {x.name}, {fill})", x)


def write_sum_ratio(w: SpecWriter, x: Stream) -> None:
    """Add a quotient of sums or windows, weighted by the mask."""
    top = w.let(f"{x.name} * {w.weight(x)}")
    form = w.rng.choice(
        (
            "cumsum({0}, axis=1)",
            "average_pool({0}, kernel=2, stride=1, padding=[1, 0], count_include_pad=true)",
            "delay({0}, by=1) + {0}",
            "(conv({0}, out={1}, kernel=2, padding=causal, bias=false) @ c{2})",
        )
    )
    weight = w.weight(x)
    above = w.let(form.format(top, 4, w.count))
    below = w.let(form.format(weight, 1, w.count))
    small = "({0} * {0} + 1e-6)" if "conv" in form else "({0} + 1e-6)"
    below = w.rng.choice(("{0}", "{0}", "max({0}, 1.0)", small)).format(below)
    ratio = w.let(f"{above} / {below}")
    close = w.rng.choice(("{1}", "{0} + {1}", "where({2}, {1}, 0.0)"))
    w.add(close.format(x.name, ratio, w.hidden(x)), x)


def write_division(w: SpecWriter, x: Stream) -> None:
    """Add a function that is infinite or NaN at zero."""
    forms = (
        "log(abs({0}))",
        "sqrt({0} * {0})",
        "abs({0}) ** -1.0",
        "{0} / sqrt(insert(mean({0} * {0}, axis=2), axis=2))",
        "{0} / sqrt(insert(mean({0} * {0}, axis=2), axis=2) + 1e-6)",
        "1.0 / {0}",
        "tanh({0}) / (1.0 + abs({0}))",
        "{0} / {0}",
        "sqrt(relu({0}))",
        "log({0} * {0} + 1e-3)",
        "log1p({0} * 0.2)",
        "log1p(abs({0}))",
        "{0} / float(cast(sigmoid({0}) + 0.9, to=int))",
        "{0} / float(cast(sigmoid({0}) + 1.0, to=int))",
    )
    w.add(w.rng.choice(forms).format(x.name), x)


def write_running(w: SpecWriter, x: Stream) -> None:
    """Add a running sum, a delay or a shift."""
    forms = (
        "cumsum({0}, axis=1)",
        "delay({0}, by=1)",
        "delay({0}, by=2, first=1.0)",
        "pad({0}, before=1)[:, :-1]",
        "pad({0}, after=1)[:, 1:]",
        "pad({0}, before=1, value=1.0)[:, :-1]",
        "flip({0}, axis=1)",
        "roll({0}, by=1, axis=1)",
    )
    picked = w.rng.choices(forms, (4, 3, 1, 3, 2, 1, 0.5, 0.5))[0]
    w.add(picked.format(x.name), x)


def write_conv(w: SpecWriter, x: Stream) -> None:
    """Add a convolution or a pool that keeps the length."""
    kernel = w.rng.choice((2, 3))
    pads = w.rng.choice((f"[{kernel - 1}, 0]", f"[0, {kernel - 1}]", "same", "causal"))
    bias = w.rng.choice(("true", "false"))
    kind = w.rng.choice(("conv", "conv", "kept", "max_pool", "average_pool"))
    window = f"kernel={kernel}, padding={pads}"
    name = w.name()
    if kind == "kept":
        w.lines.append(f"{name}, _ = conv({x.name}, out=4, {window}, keep={x.keep}) @ c{w.count}")
    elif kind == "conv":
        w.lines.append(f"{name} = conv({x.name}, out=4, {window}, bias={bias}) @ c{w.count}")
    else:
        counted = ", count_include_pad=true" if kind == "average_pool" else ""
        w.lines.append(f"{name} = {kind}({x.name}, {window}, stride=1{counted})")
    w.streams.append(Stream(name, x.keep, x.length))


def write_shorter(w: SpecWriter, x: Stream) -> None:
    """Add a window that changes the length, with the mask of its result."""
    kernel, stride = w.rng.choice((2, 3)), w.rng.choice((1, 1, 1, 2))
    pads = w.rng.choice((0, 0, 1)) if kernel == 3 else 0
    kind = w.rng.choice(("conv", "conv", "kept", "max_pool", "average_pool"))
    window = f"kernel={kernel}, stride={stride}, padding={pads}"
    name, keep = w.name(), w.name("k")
    if kind == "kept":
        w.lines.append(
            f"{name}, {keep} = conv({x.name}, out=4, {window}, keep={x.keep}) @ c{w.count}"
        )
    else:
        made = (
            f"conv({x.name}, out=4, {window}) @ c{w.count}"
            if kind == "conv"
            else f"{kind}({x.name}, {window}"
            + (", count_include_pad=true)" if kind == "average_pool" and pads else ")")
        )
        w.lines += [f"{name} = {made}", f"{keep} = conv_keep({x.keep}, {window})"]
    w.streams.append(Stream(name, keep, get_windowed_length(x.length, kernel, stride, pads)))


def get_windowed_length(length: str, kernel: int, stride: int, pads: int) -> str:
    """Return the length after a window: an offset from n, or a chain of strides."""
    less = 2 * pads - kernel + 1
    if stride > 1:
        return f"({length}){less:+}/{stride}+0"
    head, _, offset = length.rpartition("+")
    return f"{head}+{int(offset) + less}"


def write_longer(w: SpecWriter, x: Stream) -> None:
    """Add positions before or after those of a stream."""
    before = w.rng.random() < 0.6
    count = w.rng.choice((1, 2))
    value = w.rng.choice(("0.0", "0.0", "0.0", "1.0"))
    seen = w.rng.choice(("> 0.5", "> 0.5", "< 0.5"))
    there = f"ones(shape=[batch, {count}]) {seen}"
    learned = f"expand(parameter(shape=[1, {count}, 4]) @ p{w.count}, axis=0, length=batch)"
    zeros = f"zeros(shape=[batch, {count}, 4])"
    form = w.rng.choice(("pad", "pad", "zeros", "learned"))
    if form == "pad":
        side = "before" if before else "after"
        made = f"pad({x.name}, {side}={count}, value={value})"
    else:
        other = zeros if form == "zeros" else learned
        parts = [other, x.name] if before else [x.name, other]
        made = f"concat([{', '.join(parts)}], axis=1)"
    masks = [there, x.keep] if before else [x.keep, there]
    name = w.let(made)
    keep = w.let(f"concat([{', '.join(masks)}], axis=1)")
    head, _, offset = x.length.rpartition("+")
    w.streams.append(Stream(name, keep, f"{head}+{int(offset) + count}"))
    if w.rng.random() < 0.6:
        write_back(w, w.streams[-1], count, before)


def write_back(w: SpecWriter, x: Stream, count: int, before: bool) -> None:
    """Remove as many positions as were added, by a window or a slice."""
    kind = w.rng.choice(("conv", "max_pool", "average_pool", "slice", "other slice"))
    head, _, offset = x.length.rpartition("+")
    length = f"{head}+{int(offset) - count}"
    same = [s for s in w.streams if s.length == length]
    cut = (kind == "slice") == before
    part = f"[:, {count}:]" if cut else f"[:, :-{count}]"
    window = f"kernel={count + 1}, stride=1"
    if kind == "conv":
        name = w.let(f"conv({x.name}, out=4, kernel={count + 1}) @ c{w.count}")
    elif "slice" in kind:
        name = w.let(f"{x.name}{part}")
    else:
        name = w.let(f"{kind}({x.name}, {window})")
    w.streams.append(Stream(name, same[0].keep, length))


def write_repeated(w: SpecWriter, x: Stream) -> None:
    """Add a stream of each position twice, with its mask."""
    if x.length != "n+0":
        return write_elementwise(w, x)
    form = "resize({}, mode=nearest, size=[2 * n], axis=1)"
    name = w.let(form.format(x.name))
    keep = w.let(f"{form.format(f'float({x.keep})')} > 0.5")
    w.streams.append(Stream(name, keep, "(2n)+0"))


def write_slice(w: SpecWriter, x: Stream) -> None:
    """Add a slice and the same slice of the mask."""
    part, less = w.rng.choice((("[:, 1:]", 1), ("[:, :-1]", 1), ("[:, ::2]", 0), ("[:, 1::2]", 0)))
    name, keep = w.let(f"{x.name}{part}"), w.let(f"{x.keep}{part}")
    head, _, offset = x.length.rpartition("+")
    cut = f"{head}+{int(offset) - less}" if less else f"({x.length}){part}+0"
    w.streams.append(Stream(name, keep, cut))


def write_attention(w: SpecWriter, x: Stream) -> None:
    """Add an attention of a stream with itself, most often masked."""
    mask = w.rng.choices(
        (
            f"visible({x.keep})",
            f"causal & visible({x.keep})",
            f"window(2) & visible({x.keep})",
            "causal",
            "",
        ),
        (4, 4, 2, 1, 0.5),
    )[0]
    masked = f", mask={mask}" if mask else ""
    kinds = ("attention", "attend", "own", "sharp", "sparsemax", "entmax15", "by", "kernel")
    kind = w.rng.choice(kinds if mask else kinds[:2])
    name, n = w.name(), x.name
    if kind == "attention":
        made = f"{name} = attention({n}, heads=2{masked}) @ a{w.count}"
    elif kind == "attend":
        made = f"{name}, _ = attend({n}, {n}, {n}{masked})"
    else:
        rule = "" if kind == "by" else f", normalize={kind}"
        score = "scaled_dot"
        made = f"{name}, _ = attend_by({score}, {n}, {n}, {n}{masked}{rule})"
    w.lines.append(made)
    w.streams.append(Stream(name, x.keep, x.length))


def write_summary(w: SpecWriter, x: Stream) -> None:
    """Add a stream that depends on a summary of all positions."""
    pooled = f"insert({write_pooling(w, x)}, axis=1)"
    form = w.rng.choice(("{0} + {1}", "{0} * tanh({1})", "{0} * sigmoid({1})"))
    w.add(form.format(x.name, pooled), x)


def write_pooling(w: SpecWriter, x: Stream) -> str:
    """Return an expression [batch, 4] that reads all positions of a stream."""
    if w.rng.random() < 0.6:
        return write_form(w, x, SUMMARY_FORMS)
    forms = (
        f"masked_mean_pool({x.name}, {x.keep})",
        f"masked_max_pool({x.name}, {x.keep})",
        f"sum(where({w.hidden(x)}, {x.name}, 0.0), axis=1)",
        f"sum({x.name} * {w.weight(x)}, axis=1)",
        f"last_token({x.name}, {x.keep})",
        f"{x.name}[:, 0]",
        f"last({x.name})",
        f"sum({x.name}, axis=1)",
        f"mean({x.name}, axis=1)",
    )
    return w.rng.choices(forms, (6, 3, 3, 3, 2, 1, 1, 0.5, 0.5))[0]


def write_softmax(w: SpecWriter, x: Stream) -> None:
    """Add a decomposed softmax over positions."""
    low = w.rng.choice(("-inf", "-1e30", "-1e30"))
    w.add(f"{x.name} * softmax(where({w.hidden(x)}, {x.name}, {low}), axis=1)", x)


def write_merged(w: SpecWriter, x: Stream) -> None:
    """Add a function of batch and positions merged to one axis."""
    if x.length != "n+0":
        return write_elementwise(w, x)
    inner = w.rng.choice(
        ("relu({0})", "linear({0}, out=4) @ w{1}", "tanh({0})", "cumsum({0}, axis=0)")
    ).format(f"merge({x.name}, axis=0)", w.count)
    w.add(f"split({inner}, into=[batch, n], axis=0)", x)


def write_positions(w: SpecWriter, x: Stream) -> None:
    """Add position ids as numbers."""
    at = w.rng.choice((f"positions({x.keep})", f"positions({x.keep})", None))
    if at is None:
        return w.add(f"{x.name} + insert(float(positions({x.name})), axis=1)", x)
    w.add(f"{x.name} + insert(float({at}), axis=2)", x)


def write_sorted(w: SpecWriter, x: Stream) -> None:
    """Add the values of each feature in order, most often with the padded ones last."""
    fill, order = w.rng.choice((("inf", "false"), ("-inf", "true"), ("-inf", "false")))
    kept = f"where({w.hidden(x)}, {x.name}, {fill})"
    w.add(f"sort({kept}, axis=1, descending={order})", x)


def write_scan(w: SpecWriter, x: Stream) -> None:
    """Add a loop along the positions, or a recurrent layer."""
    if x.length != "n+0":
        return write_elementwise(w, x)
    start, name, h = w.let("zeros(shape=[batch, 4])"), w.name(), w.name("h")
    kept = w.rng.choice(("", f" keep {x.keep}", f" keep {x.keep}"))
    row = w.name("r")
    w.lines += [
        f"{h} = {start}",
        f"scan {row} in {x.name} along n carry {h} collect {name}{kept} {{",
        f"{h} = tanh({h} + {row})",
        f"{name} = {h}",
        "}",
    ]
    w.streams.append(Stream(name, x.keep, x.length))


FORMS_OF_SEVERAL_RESULTS = {
    "topk": "{0}, {0}a = ",
    "attend": "{0}, _ = ",
    "attend_by": "{0}, _ = ",
    "gru": "{0}, {0}a = ",
    "lstm": "{0}, {0}a, _ = ",
    "rnn": "{0}, {0}a = ",
    "chunk": "{0}, {0}a = ",
    "parts": "{0}, {0}a = ",
}
"""Names for the results of an op with several results."""


def write_form(w: SpecWriter, x: Stream, forms: list[list[str]]) -> str:
    """Write the statements of a form of `padded_layer_forms` and return the name of its value."""
    stem = w.name("f") + "_"
    made = {"x": x.name, "keep": x.keep, "weight": w.weight(x), "hidden": w.hidden(x), "p": stem}
    for n, expression in enumerate(w.rng.choice(forms), 1):
        names = FORMS_OF_SEVERAL_RESULTS.get(expression.partition("(")[0], "{0} = ")
        w.lines.append(names.format(f"{stem}{n}") + expression.format(**made))
    return f"{stem}{n}"


def write_layer_form(w: SpecWriter, x: Stream) -> None:
    """Add a layer in a form that users write."""
    w.streams.append(Stream(write_form(w, x, LAYER_FORMS), x.keep, x.length))


def write_mixer_form(w: SpecWriter, x: Stream) -> None:
    """Add a layer that reads other positions, in a form that users write."""
    w.streams.append(Stream(write_form(w, x, MIXER_FORMS), x.keep, x.length))


STEPS = (
    (write_elementwise, 6),
    (write_pair, 3),
    (write_zeroed, 6),
    (write_sum_ratio, 2),
    (write_division, 3),
    (write_running, 4),
    (write_conv, 4),
    (write_shorter, 3),
    (write_longer, 4),
    (write_slice, 2),
    (write_attention, 6),
    (write_summary, 3),
    (write_softmax, 1),
    (write_merged, 1),
    (write_positions, 1),
    (write_scan, 1),
    (write_sorted, 1),
    (write_repeated, 1),
    (write_layer_form, 8),
    (write_mixer_form, 10),
)


def write_spec(seed: int) -> PaddedSpec:
    """Return a random spec."""
    rng = random.Random(seed)
    side, replaced = rng.choice(SIDES), rng.random() < 0.3
    w = SpecWriter(rng)
    x = Stream("x", "keep", "n+0")
    w.streams.append(x)
    if replaced:
        w.add(f"where({w.hidden(x)}, x, 0.0)", x)
        w.streams.pop(0)
    for _ in range(rng.randint(1, 6)):
        w.step()
    last = w.streams[-1]
    whole = last.length == "n+0" and rng.random() < 0.5
    result = last.name if whole else write_pooling(w, last)
    shape = "batch, n, 4" if whole else "batch, 4"
    body = "\n".join(f"  {line}" for line in (*w.lines, f"return {result}"))
    text = f"{HEADER.format(side=side, shape=shape)}{body}\n}}\n"
    shorter = any(not re.fullmatch(r"n\+\d", s.length) for s in w.streams)
    return PaddedSpec(text, side, replaced, shorter)


def find_padding_effect(
    graph: Graph, spec: PaddedSpec, seed: int, scale: float = 1.0, shift: float = 0.0
) -> str:
    """Return how padding changes a result at a valid position; "" if it does not.

    Runs in which a value overflows are excluded, as in `check`.
    """
    rng = np.random.default_rng(seed)
    weights = sample_padded_weights(graph, rng)
    for length in LENGTHS if spec.shorter else (*LENGTHS, *SHORT_LENGTHS):
        x, first = rng.normal(size=(1, length, 4)) * scale + shift, None
        if length >= MIN_LENGTH:
            first = evaluate_finite(graph, x, np.ones((1, length), bool), weights)
            if first is None:
                continue
        for before, after, name, junk in iterate_paddings(spec, rng):
            if before + length + after < MIN_LENGTH:
                continue
            longer = np.concatenate([junk[:, :before], x, junk[:, before:]], axis=1)
            keep = np.array([[False] * before + [True] * length + [False] * after])
            found = evaluate_finite(graph, longer, keep, weights)
            if found is None:
                continue
            found = found[:, before : before + length] if found.ndim == 3 else found
            same = first is not None and np.allclose(
                found, first, rtol=1e-7, atol=1e-9, equal_nan=True
            )
            if same or is_out_of_range(graph, longer, keep, weights):
                continue
            if first is None:
                first = found
            else:
                return f"{length} positions, {before} {name} before and {after} after"
    return ""


def is_finite_alone(graph: Graph, seed: int) -> bool:
    """Whether the result of a sequence alone is finite."""
    rng = np.random.default_rng(seed)
    weights = sample_padded_weights(graph, rng)
    x = rng.normal(size=(1, LENGTHS[0], 4))
    found = evaluate_finite(graph, x, np.ones((1, LENGTHS[0]), bool), weights)
    return found is not None and bool(np.isfinite(found).any())


def sample_padded_weights(graph: Graph, rng: np.random.Generator) -> dict[str, Any]:
    """Return normal weights for every parameter; variances are non-negative."""
    weights = {
        n: rng.normal(size=[d.number for d in v.type.shape]) for n, v in graph.parameters.items()
    }
    return {n: np.abs(w) if n.endswith("_var") else w for n, w in weights.items()}


def iterate_paddings(
    spec: PaddedSpec, rng: np.random.Generator
) -> Iterator[tuple[int, int, str, Any]]:
    """Yield amounts of padding on the allowed sides, with padding values."""
    for before, after in PADDINGS:
        if (before and spec.side == "right") or (after and spec.side == "left"):
            continue
        noise = rng.normal(size=(1, before + after, 4))
        yield before, after, "random", 3 * noise
        yield before, after, "zero", 0 * noise
        yield before, after, "huge", 1e6 * noise
        if spec.replaced:
            yield before, after, "NaN", np.nan * noise


def evaluate_finite(graph: Graph, x: Any, keep: Any, weights: dict[str, Any]) -> Any | None:
    """Return the result in float64; None if a value overflows."""
    inputs = {n: v for n, v in (("x", x), ("keep", keep)) if n in graph.inputs}
    try:
        with np.errstate(all="ignore", over="raise"):
            return specc_numpy.evaluate_graph(graph, inputs, weights)["y"]
    except FloatingPointError:
        return None


def is_out_of_range(graph: Graph, x: Any, keep: Any, weights: dict[str, Any]) -> bool:
    """Whether a value is so large that its products overflow, which matrix products do not report."""
    exponentials = [
        results[0]
        for node, results in graph.nodes
        if node.op in (ops.Pointwise("exp"), ops.Pointwise("softplus"))
    ]
    values = [v for _, results in graph.nodes for v in results[:1]]
    inputs = {n: v for n, v in (("x", x), ("keep", keep)) if n in graph.inputs}
    named = {str(n): v for n, v in enumerate(values)}
    with np.errstate(all="ignore"):
        found = specc_numpy.evaluate_graph(replace(graph, outputs=named), inputs, weights)
    for name, value in named.items():
        made = found[name]
        if made.dtype.kind == "f":
            finite = np.abs(made[np.isfinite(made)])
            if finite.size and finite.max() > MAX_VALUE:
                return True
            if value in exponentials and np.isposinf(made).any():
                return True
    return False


def elaborate_padded_spec(text: str) -> Graph:
    """Return the graph of a spec without the slower checks of `elaborate_spec`."""
    opened = open_spec(Source("random.specc", text))
    return elaborate_model(opened.program, opened.config_options, "g").graph


@dataclass(frozen=True)
class PaddingComparison:
    """The warning of `check` about a random spec, and the effect of padding."""

    seed: int
    warned: bool
    effect: str


def compare_with_padding(seed: int) -> PaddingComparison | None:
    """Compare the warnings of a random spec with the effect of padding."""
    return compare_spec_with_padding(write_spec(seed), seed)


def compare_spec_with_padding(spec: PaddedSpec, seed: int) -> PaddingComparison | None:
    """Compare the warnings of a spec with the effect of padding; None if a shape does not fit or
    the result alone is NaN.
    """
    try:
        graph = elaborate_padded_spec(spec.text)
        warned, effect = bool(check_padding(graph)), find_padding_effect(graph, spec, seed)
        for scale, shift in INPUTS if warned else ():
            effect = effect or find_padding_effect(graph, spec, seed + 1, scale, shift)
        if warned and not effect and not is_finite_alone(graph, seed):
            return None  # NaN both alone and with padding
        return PaddingComparison(seed, warned, effect)
    except SpeccError:
        return None
