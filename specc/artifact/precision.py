"""What a manifest says of rounded weights, read again: it trusts nothing."""

from collections.abc import Mapping
from dataclasses import dataclass

from specc.files.fields import Fields
from specc.ir.ops.quantized import Layout
from specc.ir.precision import BITS, MOST_BLOCK, Meeting, Precision

LAYOUTS: Mapping[str, Layout] = {"rows": "rows", "columns": "columns"}
MOST_LOST = 1e39
"""What a number of float32 can lose at most, and more."""
ROUNDINGS: Mapping[str, Meeting] = {
    "none": "none",
    "row": "row",
    "block": "block",
    "tensor": "tensor",
    "layer": "layer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A rounded weight in a model: its form, which initializer holds its scales, how it
    was rounded, what that lost of its size, and the most of one number.
    """

    form: Precision
    scales: str
    recipe: str
    error: float
    worst: float


@dataclass(frozen=True)
class Record:
    """Every rounded weight by name, and why other matrices are not."""

    rounded: Mapping[str, Stored]
    kept: Mapping[str, str]


def record_of(data: Fields) -> Record:
    """What `precision` of a manifest says; nothing where it has none."""
    if "precision" not in data.names() or not data.table("precision"):
        return Record({}, {})
    fields = data.child("precision")
    each = fields.child("rounded")
    rounded = {name: _stored(each.child(name)) for name in each.names()}
    return Record(rounded, fields.texts_by_name("kept"))


def _stored(fields: Fields) -> Stored:
    bits = fields.integer("bits", min(BITS), max(BITS))
    if bits not in BITS:
        fields.refuse("bits", "is neither 4 nor 8")
    block = fields.integer("block", 0, MOST_BLOCK)
    if block & (block - 1) or (not block and bits != 8):
        fields.refuse("block", "is no length of a block of such numbers")
    layout = fields.choice("layout", tuple(LAYOUTS))
    rounding = fields.choice("rounding", tuple(ROUNDINGS))
    return Stored(
        form=Precision(
            bits=bits,
            block=block,
            layout=LAYOUTS[layout],
            rounding=ROUNDINGS[rounding],
            turned=fields.flag("turned"),
        ),
        scales=fields.text("scales"),
        recipe=fields.text("recipe"),
        error=fields.number("error"),
        worst=fields.number("worst", MOST_LOST),
    )
