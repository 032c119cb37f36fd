"""The padding analysis follows loops along another axis, in every iteration."""

from pathlib import Path

import pytest

from specc.analysis.padding_check import check_padding
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec

SPEC = """\
specc 1
model m
dims batch, src, tgt
graph f(x: float[batch, src, 4], keep: keep[batch, src], y: float[batch, tgt, 4]) -> (found: float[batch, tgt, 4]) {{
  s = x * insert(cast(keep, to=float), axis=2)
  scan row in y along tgt carry s collect found {{
    {body}
  }}
  return found
}}
"""


def get_warnings(directory: Path, body: str) -> list[tuple[str, str]]:
    """Return the warnings with the text they point at."""
    (directory / "m.specc").write_text(
        SPEC.format(body=body.replace("; ", "\n    ")), encoding="utf-8"
    )
    found = check_padding(elaborate_spec(open_spec(str(directory / "m.specc"))).graph)
    return [(d.title, d.primary.span.text if d.primary else "") for d in found]


@pytest.mark.parametrize(
    "body",
    [
        "found = row + sum(s, axis=1); s = s * 2.0",  # zeros remain zeros
        "found = row; s = s + 1.0",  # unused
        "found, _ = attend_by(dot, row, x, x, mask=visible(keep)); s = 0.5 * s",
    ],
)
def test_clean_bodies(body: str, tmp_path: Path) -> None:
    assert get_warnings(tmp_path, body) == []


@pytest.mark.parametrize(
    ("body", "op", "where"),
    [
        ("found = row + mean(x, axis=1); s = 0.5 * s", "mean", "mean(x, axis=1)"),
        (
            "found, _ = attend_by(dot, row, x, x, mask=all); s = 0.5 * s",
            "masked_softmax",
            "attend_by(dot, row, x, x, mask=all)",
        ),
        # zeros only before the first iteration
        ("found = row + sum(s, axis=1); s = s + 1.0", "sum", "sum(s, axis=1)"),
    ],
)
def test_bodies_that_read_padding(body: str, op: str, where: str, tmp_path: Path) -> None:
    ((title, text),) = get_warnings(tmp_path, body)
    assert title == f"padded positions affect `found`: `{op}` reads them without a mask"
    assert text == where
