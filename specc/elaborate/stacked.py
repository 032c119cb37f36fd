"""Weights of which there is one for each expert: asked for once, held once, with an axis
for the experts in front.

While the block of an expert is elaborated, every weight that it asks for is one
expert's: `[out, in]` to the block, `[experts, out, in]` to the model. Experts that have
experts of their own have an axis for each.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from specc.ir.dim import Dim
from specc.ir.graph import Builder, Parameter, Value
from specc.ir.types import Type

EACH = {"fan_in": "fan_in_each"}
"""How a weight starts that looks at its own shape, where there are several in one."""


@dataclass
class Stack:
    """The weights of the experts that are being elaborated: as one expert sees them, and
    the values that hold those of all.
    """

    experts: Dim
    inside: dict[str, Value] = field(default_factory=dict)
    outside: dict[str, Value] = field(default_factory=dict)


def whole_shape(stacks: Sequence[Stack], shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """The shape in which the model holds a weight that has this shape where it is used."""
    return (*(s.experts for s in stacks), *shape)


def held(builder: Builder, stacks: Sequence[Stack], wanted: Parameter) -> Value:
    """The weight as it is seen where it is asked for; `wanted` says so too."""
    if not stacks:
        return builder.parameter(wanted)
    *outer, stack = stacks
    if wanted.name not in stack.inside:
        stack.inside[wanted.name] = Value(wanted.type)
        whole = stacked(wanted, stack.experts)
        stack.outside[wanted.name] = held(builder, outer, whole)
    return stack.inside[wanted.name]


def stacked(one: Parameter, experts: Dim) -> Parameter:
    """The weight that holds this one for each expert."""
    name, bracket, rest = one.initial.partition("(")
    return replace(
        one,
        type=Type(one.type.dtype, (experts, *one.type.shape)),
        initial=f"{EACH.get(name, name)}{bracket}{rest}",
    )
