"""The help of W0601, written into the spec, is accepted by `check`."""

import re
from pathlib import Path

import pytest
from support.padding_said import ONE, ROWS, graph_of

from specc.analysis.padding_check import check_padding
from specc.diagnostics.diagnostic import Diagnostic

CASES = (
    ("sum(x, axis=1)", ONE, ""),
    ("max(x, axis=1)", ONE, ""),
    ("min(x, axis=1)", ONE, ""),
    ("mean(x, axis=1)", ONE, ""),
    ("x[:, 0]", ONE, ""),
    ("last(x)", ONE, ""),
    ("cumsum(x, axis=1)", ROWS, ""),
    ("delay(x, by=1)", ROWS, ""),
    ("delay(x, by=2, first=1.0)", ROWS, ""),
    ("softmax(x, axis=1)", ROWS, ""),
    ("conv(x, weight=ones(shape=[4, 4, 3]), bias=false, padding=same)", ROWS, ""),
    ("max_pool(x, kernel=3, stride=1, padding=1)", ROWS, ""),
    ("average_pool(x, kernel=3, stride=1, padding=1, counted=true)", ROWS, ""),
    ("max_pool(pad(x, before=2), kernel=3, stride=1)", ROWS, ""),
    ("average_pool(pad(x, before=1, after=1), kernel=3, stride=1)", ROWS, ""),
    ("average_pool(pad(x, after=2, value=1.0), kernel=3, stride=1)", ROWS, ""),
    ("pad(x, before=1)[:, :-1]", ROWS, ""),
    ("max_pool(concat([zeros(shape=[batch, 2, 4]), x], axis=1), kernel=3, stride=1)",
     ROWS, ""),
    ("max_pool(concat([delay(mem, by=1), x], axis=1), kernel=3, stride=1)", ROWS, ""),
    ("max_pool(concat([x, delay(mem, by=1)], axis=1), kernel=3, stride=1)", ROWS, ""),
    ("masked_mean_pool(x[:, ::2], keep[:, ::2])", ONE, " left"),
    ("x + insert(float(positions(x)), axis=1)", ROWS, " left"),
    ("attend(x, x, x, mask=causal)", ROWS, ""),
    ("sort(where(insert(keep, axis=2), x, inf), axis=1)", ROWS, ""),
    ("sum(f * (cumsum(f * x, axis=1) / cumsum(f, axis=1)), axis=1)", ONE, ""),
    ("sum(f * log(cumsum(f, axis=1)) * x, axis=1)", ONE, ""),
    ("sum(f * (1.0 / cumsum(f, axis=1)) * x, axis=1)", ONE, ""),
)  # fmt: skip
FIRST = "mem = ones(shape=[batch, 2, 4]) * 0.5; f = insert(cast(keep, to=float), axis=2); "


def apply_help(body: str, said: Diagnostic, side: str) -> tuple[str, str]:
    """Return a spec's body and side of padding with the help written in."""
    (code, *_) = re.findall("`([^`]*)`", said.helps[0])
    assert said.primary is not None
    span = said.primary.span
    marked = span.source.text[span.start : span.end]
    before, at, value = body.partition("return ")
    match code.split("(")[0].split("=")[0].split(":")[0]:
        case "keep" if ":" in code:
            return body, f" {code.rsplit(' ', 1)[1]}"
        case "keep":
            return (f"{before}r, _ = {value.replace('conv(x', f'conv(x, {code}')}; return r", side)
        case "where" if ", y," in code:
            return body.replace(marked, code.replace(", y,", f", {marked},")), side
        case "where":
            return before + at + re.sub(r"\bx\b", code, value, count=1), side
        case "& visible":
            return body.replace("mask=causal", f"mask=causal {code}"), side
        case "positions":
            own = "insert(float(positions(x)), axis=1)"
            return body.replace(own, f"insert(float({code}), axis=2)"), side
    return body.replace(marked, code), side


@pytest.mark.parametrize(("value", "shape", "side"), CASES)
def test_the_help_is_accepted(value: str, shape: str, side: str, tmp_path: Path) -> None:
    attended = value.startswith("attend")
    body = FIRST + (f"y, _ = {value}; return y" if attended else f"return {value}")
    found = check_padding(graph_of(tmp_path, body, shape, side))
    assert found
    for _ in range(2):  # two ops may be at fault, one after the other
        if found:
            body, side = apply_help(body, found[0], side)
            found = check_padding(graph_of(tmp_path, body, shape, side))
    assert not found
