"""Words that are worked out while compiling."""

import math

from specc.elaborate.kinds import Anything
from specc.elaborate.numbers import as_float, known, whole_part
from specc.elaborate.values import Evaluated, Number, Record, Tensor, Unknown, describe
from specc.elaborate.vocabulary.registry import Site, word
from specc.ir.dim import Dim


@word(name="len")
def len_(site: Site, x: Anything) -> Dim:
    """How many items a list has, or how many letters a text."""
    if isinstance(x, tuple | str):
        return Dim.of(len(x))
    if isinstance(x, Record):
        return Dim.of(len(x.fields))
    helps = (
        ["length(x, axis=1) is the length of a tensor's axis"]
        if isinstance(x, Tensor)
        else []
    )
    site.fail(
        "E0203", f"`len` takes a list or a text, not {describe(x)}", "x", helps=helps
    )


@word(name="int")
def int_(site: Site, x: Anything) -> Evaluated:
    """A number cut to a whole one."""
    if not isinstance(x, Number):
        site.fail("E0203", f"`int` takes a number, not {describe(x)}", "x")
    if isinstance(x, float) and not math.isfinite(x):
        site.fail("E0310", f"int({x:g}) has no value", "x")
    if isinstance(x, Unknown):
        return whole_part(site.context, x, site.span)
    return x if isinstance(x, Dim) else Dim.of(int(x))


@word()
def at_least(site: Site, x: Anything, least: Anything) -> Evaluated:
    """The number itself, which is no less than `least`: for what a definition takes."""
    if not isinstance(x, Number) or not isinstance(least, Number):
        site.fail("E0203", f"`at_least` takes two numbers, not {describe(x)}", "x")
    number, lowest = known(x), known(least)
    if number is None or lowest is None or number >= lowest:
        return x
    site.fail(
        "E0417", f"{x} is less than {least}, the least that has a meaning here", "x"
    )


@word(name="float")
def float_(site: Site, x: Anything) -> Evaluated:
    """A whole number as one with a fraction; of a tensor, its values so."""
    if isinstance(x, Tensor):
        from_ = {"i64": "f32", "bool": "f32"}.get(x.type.dtype)
        return site.cast(x, from_) if from_ else x
    if not isinstance(x, Number):
        site.fail(
            "E0203", f"`float` takes a number or a tensor, not {describe(x)}", "x"
        )
    return as_float(site.context, x, site.span)


@word()
def apply(site: Site, f: Anything, *inputs: Anything) -> Evaluated:
    """What `f` stands for (a block, an activation, a norm, positions), of these inputs."""
    raise AssertionError("`apply` is resolved by the caller")
