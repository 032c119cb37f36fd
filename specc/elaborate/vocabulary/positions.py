"""Words for positions: numbers of rows, and what is made of them."""

from typing import Any, Literal

from specc.elaborate.numbers import attribute
from specc.elaborate.rope import fault, frequencies
from specc.elaborate.values import Rope, Tensor, describe
from specc.elaborate.vocabulary.registry import Site, word
from specc.ir import ops
from specc.ir.dim import Dim

WIDEST = 2**20
"""Features of a head that can be turned: each pair has a frequency of its own in the model."""


@word()
def positions(site: Site, x: Tensor, *, offset: Dim = Dim.of(0), axis: Dim = Dim.of(1)) -> Tensor:
    """Position ids. Of `keep`: how many rows are kept before each, int[batch, n], so padding does not count.

    Of any other tensor: its row numbers along `axis`, int[n]. `offset` is added.
    """
    if x.type.dtype == "bool":
        count = site.one(ops.CumSum(site.axis(x, axis)), site.one(ops.Cast("i64"), x))
        before = site.one(ops.Arith("sub"), count, site.constant(1, "i64"))
        ids = site.one(ops.Arith("max"), before, site.constant(0, "i64"))
    else:
        ids = site.one(ops.Extent(site.axis(x, axis)), x)
    if offset == 0:
        return ids
    if offset.number is None:
        return site.one(ops.Arith("add"), ids, site.one(ops.Size(offset)))
    return site.one(ops.Arith("add"), ids, site.constant(offset.number, "i64"))


@word()
def sinusoid(
    site: Site,
    at: Tensor,
    *,
    dim: Dim,
    layout: Literal["interleaved", "halves", "fairseq"],
    base: float = 10000.0,
) -> Tensor:
    """Sines and cosines of positions (arXiv:1706.03762, sec. 3.5): a vector of `dim` numbers for each."""
    if at.type.dtype != "i64":
        site.fail("E0301", f"positions are whole numbers, not {describe(at)}", "at")
    return site.one(ops.Sinusoid(dim, layout, base), at)


@word()
def rope(
    site: Site,
    *,
    theta: float,
    kind: Literal["default", "linear", "llama3", "yarn", "longrope"] = "default",
    factor: float = 1.0,
    low_freq_factor: float = 1.0,
    high_freq_factor: float = 4.0,
    original: Dim = Dim.of(8192),
    beta_fast: float = 32.0,
    beta_slow: float = 1.0,
    attention_factor: float | None = None,
    divisors: tuple[float, ...] = (),
) -> Rope:
    """Rotary frequencies `theta^(-2n/d)` and how they are scaled for longer texts.

    `longrope` divides each frequency by one of `divisors`, made for texts `factor` times the `original` length.
    """
    numbers: dict[str, Any] = {}
    if kind != "default":
        numbers = {"factor": factor}
    if kind == "llama3":
        numbers |= {"low": low_freq_factor, "high": high_freq_factor}
    if kind == "yarn":
        numbers |= {"fast": beta_fast, "slow": beta_slow}
    if kind == "longrope":
        numbers["divisors"] = divisors
    if kind in ("yarn", "longrope"):
        numbers["attention"] = attention_factor
    if kind in ("llama3", "yarn", "longrope"):
        numbers["original"] = site.number(original, "original")
    made = Rope(theta, kind, tuple(numbers.items()))
    if why := fault(made):
        site.fail("E0203", f"`rope`: {why}")
    return made


@word()
def rotate(
    site: Site,
    x: Tensor,
    at: Tensor,
    rope: Rope,
    *,
    pairs: Literal["half", "interleaved"],
    dim: Dim | None = None,
) -> Tensor:
    """Rotary embedding of [batch, heads, length, d] at positions `at` (arXiv:2104.09864).

    `pairs=half` turns feature n with n + d/2 (Llama files), `interleaved` 2n with 2n + 1. Only the first
    `dim` features turn when it is given. `at` is int[batch, length] or int[length].
    """
    if len(x.shape) != 4:
        site.fail("E0307", "`rotate` takes the axes batch, heads, length, d", "x", describe(x))
    if len(at.shape) == 1:
        at = site.one(ops.Insert(0), at)
    width = dim if dim is not None else x.shape[-1]
    if width.number is not None and not 2 <= width.number <= WIDEST:
        site.fail("E0203", f"`rotate` turns from 2 to {WIDEST} features, not {width}", "dim")
    if rope.kind != "default":
        attribute(site.context, width, f"the number of features that `{rope.kind}` turns", site.spans.get("x"))
    made, factor = frequencies(rope, width)
    if made and width.number is not None and 2 * len(made) != width.number:
        site.fail("E0203", f"{width} features are {width.number // 2} pairs, `divisors` holds {len(made)}", "rope")
    cos, sin = site.add(ops.RopeAngles(width, rope.theta, factor, made), at)
    return site.one(ops.Rotate(pairs), x, cos, sin)
