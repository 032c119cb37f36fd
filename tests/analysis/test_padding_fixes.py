"""The advice of W0601, applied to the spec, passes `check`."""

import re

import pytest
from support.padding_specs import POOLED_SHAPE, SEQUENCE_SHAPE, write_padding_spec
from support.random_padded_specs import elaborate_padded_spec, write_spec

from specc.analysis.padding_check import check_padding
from specc.diagnostics.diagnostic import Diagnostic, SpeccError

CASES = (
    ("sum(x, axis=1)", POOLED_SHAPE, ""),
    ("max(x, axis=1)", POOLED_SHAPE, ""),
    ("min(x, axis=1)", POOLED_SHAPE, ""),
    ("mean(x, axis=1)", POOLED_SHAPE, ""),
    ("x[:, 0]", POOLED_SHAPE, ""),
    ("last(x)", POOLED_SHAPE, ""),
    ("cumsum(x, axis=1)", SEQUENCE_SHAPE, ""),
    ("delay(x, by=1)", SEQUENCE_SHAPE, ""),
    ("delay(x, by=2, first=1.0)", SEQUENCE_SHAPE, ""),
    ("softmax(x, axis=1)", SEQUENCE_SHAPE, ""),
    ("conv(x, weight=ones(shape=[4, 4, 3]), bias=false, padding=same)", SEQUENCE_SHAPE, ""),
    ("max_pool(x, kernel=3, stride=1, padding=1)", SEQUENCE_SHAPE, ""),
    ("average_pool(x, kernel=3, stride=1, padding=1, count_include_pad=true)", SEQUENCE_SHAPE, ""),
    ("max_pool(pad(x, before=2), kernel=3, stride=1)", SEQUENCE_SHAPE, ""),
    ("average_pool(pad(x, before=1, after=1), kernel=3, stride=1)", SEQUENCE_SHAPE, ""),
    ("average_pool(pad(x, after=2, value=1.0), kernel=3, stride=1)", SEQUENCE_SHAPE, ""),
    ("pad(x, before=1)[:, :-1]", SEQUENCE_SHAPE, ""),
    ("max_pool(concat([zeros(shape=[batch, 2, 4]), x], axis=1), kernel=3, stride=1)",
     SEQUENCE_SHAPE, ""),
    ("max_pool(concat([delay(mem, by=1), x], axis=1), kernel=3, stride=1)", SEQUENCE_SHAPE, ""),
    ("max_pool(concat([x, delay(mem, by=1)], axis=1), kernel=3, stride=1)", SEQUENCE_SHAPE, ""),
    ("masked_mean_pool(x[:, ::2], keep[:, ::2])", POOLED_SHAPE, " left"),
    ("x + insert(float(positions(x)), axis=1)", SEQUENCE_SHAPE, " left"),
    ("attend(x, x, x, mask=causal)", SEQUENCE_SHAPE, ""),
    ("sort(where(insert(keep, axis=2), x, inf), axis=1)", SEQUENCE_SHAPE, ""),
    ("sum(f * (cumsum(f * x, axis=1) / cumsum(f, axis=1)), axis=1)", POOLED_SHAPE, ""),
    ("sum(f * log(cumsum(f, axis=1)) * x, axis=1)", POOLED_SHAPE, ""),
    ("sum(f * (x / float(length(x, axis=1))), axis=1)", POOLED_SHAPE, ""),
    ("matmul(softmax(where(keep[:, none, :] & (x[:, :, :1] > 0.0), matmul(x, transpose(x)), -inf)), x)", SEQUENCE_SHAPE, ""),
    ("masked_max_pool(x[:, 1:], keep[:, 1:])", POOLED_SHAPE, ""),
    ("roll(x, 1, axis=1)", SEQUENCE_SHAPE, ""),
    ("flip(x, axis=1) + x", SEQUENCE_SHAPE, ""),
    ("float(argmax(where(insert(keep, axis=2), x, -inf), axis=1))", POOLED_SHAPE, ""),
    ("sort(x, axis=1, descending=true)[:, 0]", POOLED_SHAPE, ""),
    ("sum(f * log_softmax(cumsum(f * x, axis=1) / cumsum(f, axis=1), axis=2), axis=1)", POOLED_SHAPE, ""),
    ("sum(resize(f * x, mode=bilinear, size=[3 * n, 4], axis=1), axis=1)", POOLED_SHAPE, ""),
    ("sum(resize(f * x, mode=bilinear, factor=3, axis=1)[:, :, :4], axis=1)", POOLED_SHAPE, ""),
    ("sum(resize(f * x, mode=nearest, size=[7], axis=1), axis=1)", POOLED_SHAPE, ""),
    ("sum(f * (1.0 / cumsum(f, axis=1)) * x, axis=1)", POOLED_SHAPE, ""),
)  # fmt: skip
FIRST = "mem = ones(shape=[batch, 2, 4]) * 0.5; f = insert(cast(keep, to=float), axis=2); "
SPECS = 150
"""Random specs whose warnings are followed."""


def split_call(text: str) -> tuple[str, str, str]:
    """Return what precedes the first operand of a call or slice, the operand, and the rest."""
    if "(" not in text.partition("[")[0]:
        operand, at, rest = text.partition("[")
        return "", operand, at + rest
    start, depth = text.index('", ' if text.startswith("einsum") else "(") + 1, 0
    start += 2 * text.startswith("einsum")
    for n, sign in enumerate(text[start:], start):
        if depth == 0 and sign in ",)":
            return text[:start], text[start:n], text[n:]
        depth += (sign in "([") - (sign in ")]")
    raise AssertionError(text)


def apply_advice(said: Diagnostic) -> str | None:
    """Return the spec with the advice of a warning applied; None if the advice needs a mask that
    only the user knows, or another position."""
    advice, (code, *_) = said.helps[0], re.findall("`([^`]*)`", said.helps[0])
    assert said.primary is not None
    span = said.primary.span
    text, marked = span.source.text, span.text
    if "where `mask`" in advice or text.count(marked) > 1:
        return None
    if "declare it:" in advice:
        return re.sub(r"keep\[batch, n\][ a-z]*", code.partition(": ")[2], text)
    if code == "positions(keep)":
        text = re.sub(r"float\(positions\(\w+\)\), axis=1", "float(positions(keep)), axis=2", text)
        return re.sub(r"sinusoid\(positions\(\w+", "sinusoid(positions(keep", text)
    if code.startswith("sum("):
        if "axis=1) / " in marked:
            return text.replace(marked, marked.partition(" / ")[0] + f" / insert({code}, axis=1)")
        return re.sub(
            r"float\(length\(\w+, axis=1\)\)", f"insert({code}, axis=1)[:, :, none]", text
        )
    if advice.startswith("replace padded values before"):
        place = said.related_labels[0].span if said.related_labels else span
        made = re.sub(
            r"(?:pad|merge)\(.*|concat.*", lambda m: rewrite_joined_operand(code, m[0]), place.text
        )
        return text[: place.start] + made + text[place.end :]
    made = rewrite_marked_text(advice, code, marked)
    if made and "conv(" in marked and code.startswith("keep="):
        line = text.rfind("\n", 0, span.start) + 1
        return f"{text[:line]}r, _ = {made}\n{text[line : span.start]}r{text[span.end :]}"
    return None if made in (None, marked) else text[: span.start] + made + text[span.end :]


def rewrite_joined_operand(code: str, marked: str) -> str:
    """Return the text of a `pad`, `concat` or `merge` with its padded operand masked."""
    if marked.startswith("concat"):
        return re.sub(
            r"(?<=[\[ ])([tx]\d*)(?=[,\]])", lambda x: re.sub(r"\bx\b", x[0], code), marked
        )
    before, operand, after = split_call(marked)
    return before + re.sub(r"\bx\b", lambda _: operand, code, count=1) + after


def rewrite_marked_text(advice: str, code: str, marked: str) -> str | None:
    """Return the marked text with the advice applied."""
    call, at, name = marked.partition(" @ ")
    if advice.startswith("add `keep "):
        return marked.replace(" {", f" {code} {{", 1)
    if advice.startswith("add `keep="):
        return f"{call[:-1]}, {code}){at}{name}"
    if "visible" in code:
        return (
            marked.replace("mask=causal", f"mask=causal {code}") if "mask=causal" in call else None
        )
    if advice.startswith("flip it back"):
        return code.replace("y", marked)
    if advice.startswith("replace padded results"):
        return code.replace(", y,", f", {f'({marked})' if at else marked},")
    if advice.startswith("flip the other operands"):
        return re.sub(r"\bkeep\b|\bx$", lambda x: code.replace("keep", x[0]), marked)
    if not advice.startswith(("use", "replace padded values first")):
        return None
    before, operand, after = split_call(marked)
    code = re.sub(r"\bx\b", lambda _: operand, code, count=1)
    return code if advice.startswith("use") else before + code + after


def is_fixed(said: Diagnostic, found: list[Diagnostic]) -> bool:
    """Return True if a warning is gone or has new advice."""
    return not any(f.title == said.title and f.helps == said.helps for f in found)


@pytest.mark.parametrize(("value", "shape", "side"), CASES)
def test_advice_is_accepted(value: str, shape: str, side: str) -> None:
    attended = value.startswith("attend")
    body = FIRST + (f"y, _ = {value}; return y" if attended else f"return {value}")
    text = write_padding_spec(body, shape, side)
    found = check_padding(elaborate_padded_spec(text))
    assert found
    for _ in range(3):  # several ops may need a fix, one after the other
        if found:
            made = apply_advice(found[0])
            assert made is not None
            text = made
            found = check_padding(elaborate_padded_spec(text))
    assert not found


@pytest.mark.parametrize("many", [SPECS // 4, pytest.param(SPECS, marks=pytest.mark.parity)])
def test_advice_fixes_random_specs(many: int) -> None:
    followed, left = 0, list[str]()
    for seed in range(many):
        text = write_spec(seed).text
        try:
            found = check_padding(elaborate_padded_spec(text))
        except SpeccError:
            continue
        for said in found:
            made = apply_advice(said) if said.helps else None
            if made is None:
                continue
            followed += 1
            if not is_fixed(said, check_padding(elaborate_padded_spec(made))):
                left.append(f"{seed}: {said.title}: {said.helps[0]}")
    assert not left
    assert followed > many // 3
