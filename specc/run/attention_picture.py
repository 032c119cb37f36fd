"""Where a model looked, as the content of a file: a page, an SVG or a PNG."""

from dataclasses import dataclass

from specc.data.pictures.attention_page import attention_page
from specc.data.pictures.raster import lacking, png
from specc.data.pictures.sheet import sheet
from specc.data.pictures.svg import svg
from specc.files.read import shown
from specc.run.attention import Look
from specc.run.attention_choice import Choice


@dataclass(frozen=True)
class Picture:
    """The bytes of a file, and what there is to remark on it."""

    content: bytes
    remarks: tuple[str, ...] = ()


def picture_of(
    seen: Look, form: str, choice: Choice | None = None, *, log: bool = False
) -> Picture:
    """A file of the ending `form` (`.html`, `.svg`, `.png`) that shows what `choice`
    picks: a page everything, a drawing the last attention where nothing is picked.

    E0931 and E0954 where there is no such attention, E0902 and E0953 for a PNG that
    cannot be made.
    """
    looks, left_out = seen.drawn(choice or Choice(), every=form == ".html")
    remarks = (left_out,) if left_out else ()
    if form == ".html":
        return Picture(attention_page(looks, log=log).encode("utf-8"), remarks)
    drawing = sheet(looks, log=log)
    if form == ".svg":
        return Picture(svg(drawing).encode("utf-8"), remarks)
    content = png(drawing)
    if strange := lacking(drawing.marks):
        remarks = (
            *remarks,
            f"no font here has {shown(strange[:20])}: the PNG shows their numbers; "
            ".svg and .html show them",
        )
    return Picture(content, remarks)
