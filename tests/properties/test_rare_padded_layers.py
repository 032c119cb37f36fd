"""Ops that specs rarely combine (`rare_padded_specs`): without a padding warning, padding has no
effect.
"""

import pytest
from support.random_padded_specs import compare_spec_with_padding, elaborate_padded_spec
from support.rare_padded_specs import LAYER_FORMS, LOOP_FORMS, write_rare_spec, write_single_form

from specc.analysis import (
    padding_constants,
    padding_dataflow,
    padding_nonfinite,
    padding_order_and_windows,
    padding_safe_ops,
    padding_zeros,
)
from specc.analysis.padding_check import check_padding
from specc.ir import ops

SIDES = ("left", "right", "")
MANY, CHUNK = 1500, 250
MIN_SHARE = 0.78
"""Minimum share of warned specs of a chunk that show an effect."""

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

REPEATED = "concat([{x}, tanh({x})], axis=1) ; concat([{keep}, {keep}], axis=1)"
"""A stream and its mask, in which padding is between the valid positions."""
PAIRS = "{x}[:, 1:] - {x}[:, :-1] ; "
BEST = "argmax(where({keep}, sum({x}), -inf), axis=1)"
LOOP = (
    "{h} = zeros(shape=[batch, 4])"
    " ; scan r{p} in {x} along {length} carry {h} collect {out} keep {keep} {{"
)
"""The first lines of a loop that skips padded positions."""
LEAKS = {
    "the sum of a loop-carried sequence that is not zero at padding": (
        "{h} = {x} * {weight} ; scan r{p} in {x} along {length} carry {h} keep {keep} {{"
        " ; {h} = tanh({h} + masked_mean_pool({h}, {keep})[:, none]) ; }}"
        " ; {out} = {x} + sum({h}, axis=1)[:, none]",
        SIDES,
    ),
    "a loop-carried sequence that is infinite at padding": (
        "{h} = abs({x}) ; scan r{p} in {x} along {length} carry {h} keep {keep} {{"
        " ; {h} = 1.0 - log(abs({h}) * {weight}) ; }}"
        " ; {out} = {x} + sum({h} * {weight}, axis=1)[:, none]",
        SIDES,
    ),
    "a masked loop that attends to all positions": (
        f"{LOOP} ; a{{p}}, _ = attend_by(dot, {{h}}, {{x}}, {{x}}, mask=all)"
        " ; {h} = tanh(r{p} + a{p}) ; {out} = {h} ; }}",
        SIDES,
    ),
    "an index into an axis with positions before it": (
        f"{BEST} ; gather(pad({{x}}, before=2), {{p}}1, axis=1) ; {{x}} + {{p}}2[:, none]",
        ("left", ""),
    ),
    "an index into an axis with repeated positions": (
        f"{BEST} ; resize({{x}}, mode=nearest, size=[2 * n], axis=1)"
        " ; gather({p}2, {p}1, axis=1) ; {x} + {p}3[:, none]",
        ("left", ""),
    ),
    "a running sum over sorted positions": (
        "sort(relu({x}) * {weight}, axis=1, descending=true)"
        " ; {x} + sum(cumsum({p}1, axis=1), axis=1)[:, none]",
        SIDES,
    ),
    "an index after the last valid position": (
        "pad({x}, after=2) ; {x} + gather({p}1, sum(cast({keep}, to=int), axis=1) + 1 - 1, axis=1)[:, none]",
        ("right",),
    ),
    "a window over a concatenated stream": (
        f"{REPEATED} ; attend({{x}}, {{p}}1, {{p}}1, mask=window(3, ahead=3) & visible({{p}}2))",
        SIDES,
    ),
    "a convolution over a concatenated stream": (
        f"{REPEATED} ; where({{p}}2[..., none], {{p}}1, 0.0)"
        " ; {x} + sum(tanh(conv({p}3, out=4, kernel=2, padding=same) @ c{p}) * float({p}2)[..., none], axis=1)[:, none]",
        SIDES,
    ),
    "the minimum of a mask and a number that may be negative": (
        "min({weight}, tanh({x})) ; {x} + sum({x} * {p}1, axis=1)[:, none]",
        SIDES,
    ),
    "a sum of log probabilities of masked scores": (
        "log_softmax(where({hidden}, {x}, -inf), axis=2) ; {x} + sum({p}1 * {weight}, axis=1)[:, none]",
        SIDES,
    ),
    "a sum of logarithms of sums": (
        "log(sum(relu({x}), axis=2)) ; {x} + sum({p}1 * float({keep}), axis=1)[:, none, none]",
        SIDES,
    ),
    "a mask of the second of each pair": (
        f"{PAIRS}{{keep}}[:, 1:] & {{keep}}[:, 1:] ; {{x}} + masked_mean_pool({{p}}1, {{p}}2)[:, none]",
        ("left", ""),
    ),
    "a mask of the first of each pair": (
        f"{PAIRS}{{keep}}[:, :-1] ; {{x}} + masked_mean_pool({{p}}1, {{p}}2)[:, none]",
        ("right", ""),
    ),
    "a mask of distant pairs": (
        "{x}[:, 2:] - {x}[:, 1:-1] ; {keep}[:, 2:] & {keep}[:, 1:-1]"
        " ; {x} + masked_mean_pool({p}1, {p}2)[:, none]",
        ("left", ""),
    ),
    "a slice of a concatenated stream": (
        f"{REPEATED} ; {{x}} + masked_mean_pool({{p}}1[:, 1:-1], {{p}}2[:, 1:-1])[:, none]",
        SIDES,
    ),
    "a sum over copies of the ends": (
        "pad({weight}, before=1, after=1, mode=edge) ; pad({x}, before=1, after=1, mode=edge)"
        " ; {x} + sum({p}1 * {p}2, axis=1)[:, none]",
        SIDES,
    ),
    "a softmax over copies of the ends": (
        "softmax(pad(where({keep}, sum({x}), -inf), before=1, after=1, mode=edge), axis=1)"
        " ; {x} + {p}1[:, 1:-1][..., none]",
        SIDES,
    ),
    "a roll over the features of rolled positions": (
        "roll(roll({x}, 1, axis=1), 1, axis=2) ; {x} + {p}1",
        SIDES,
    ),
    "the index of the maximum of a concatenated stream": (
        f"{REPEATED} ; topk(where({{p}}2[..., none], {{p}}1, -inf), 2, axis=1)"
        " ; {x} + float({p}3a)[:, 0][:, none]",
        SIDES,
    ),
    "a maximum with zero of values of either sign": (
        "max({weight} - {x}, 0.0) ; {x} + sum({x} * {p}1, axis=1)[:, none]",
        SIDES,
    ),
    "a maximum with zero of positive values": (
        "relu({weight} + abs({x})) ; {x} + sum({x} * {p}1, axis=1)[:, none]",
        SIDES,
    ),
}
CLEAN = {
    "a masked loop that attends to all valid positions": (
        f"{LOOP} ; a{{p}}, _ = attend_by(dot, {{h}}, {{x}}, {{x}}, mask=visible({{keep}}))"
        " ; {h} = tanh(r{p} + a{p}) ; {out} = {h} ; }}",
        SIDES,
    ),
    "a maximum with zero of a mask minus a constant": (
        "max({weight} - 0.3, 0.0) ; {x} + sum({x} * {p}1, axis=1)[:, none]",
        SIDES,
    ),
    "a maximum with zero of a mask minus positive values": (
        "relu(3.0 * {weight} - softplus({x})) ; {x} + sum({x} * {p}1, axis=1)[:, none]",
        SIDES,
    ),
    "a minimum with zero of a mask plus squares": (
        "min({weight} + {x} * {x}, 0.0) ; {x} + sum({x} * {p}1, axis=1)[:, none]",
        SIDES,
    ),
    "a maximum over copies of the ends": (
        "pad({keep}, before=1, after=2, mode=edge) ; pad({x}, before=1, after=2, mode=edge)"
        " ; max(where({p}1[..., none], {p}2, -inf), axis=1) ; {x} + {p}3[:, none]",
        SIDES,
    ),
    "softmax with an added score": (
        "softmax(pad(where({keep}, sum({x}), -inf), before=1, after=1), axis=1)"
        " ; {x} * {p}1[:, 1:-1][..., none]",
        SIDES,
    ),
    "softmax under a padded mask": (
        "pad({keep}, before=1, value=true) ; pad(sum({x}), before=1)"
        " ; softmax(where({p}1, {p}2, -1e30), axis=1) ; {x} * {p}3[:, 1:][..., none]",
        SIDES,
    ),
    "the largest values of a concatenated stream": (
        f"{REPEATED} ; topk(where({{p}}2[..., none], {{p}}1, -inf), 2, axis=1)"
        " ; {x} + sum({p}3, axis=1)[:, none]",
        SIDES,
    ),
    "the minimum of a mask and a number from 0 to 1": (
        "min({weight}, sigmoid({x})) ; {x} + sum({x} * {p}1, axis=1)[:, none]",
        SIDES,
    ),
    "a sum of log probabilities": (
        "log_softmax({x}, axis=2) ; {x} + sum({p}1 * {weight}, axis=1)[:, none]",
        SIDES,
    ),
    "a mask of pairs": (
        f"{PAIRS}{{keep}}[:, 1:] & {{keep}}[:, :-1] ; {{x}} + masked_mean_pool({{p}}1, {{p}}2)[:, none]",
        SIDES,
    ),
    "a mask of three in a row": (
        "{x}[:, 2:] - {x}[:, :-2] ; {keep}[:, 2:] & {keep}[:, 1:-1] & {keep}[:, :-2]"
        " ; {x} + masked_mean_pool({p}1, {p}2)[:, none]",
        SIDES,
    ),
    "the mean of a concatenated stream": (
        f"{REPEATED} ; {{x}} + masked_mean_pool({{p}}1, {{p}}2)[:, none]",
        SIDES,
    ),
    "attention to a concatenated stream": (
        f"{REPEATED} ; attend({{x}}, {{p}}1, {{p}}1, mask=visible({{p}}2))",
        SIDES,
    ),
    "a recurrent layer over a concatenated stream": (
        f"{REPEATED} ; gru({{p}}1, hidden=4, reset=after, keep={{p}}2) @ l{{p}}"
        " ; {x} + {p}3a[:, 0][:, none]",
        SIDES,
    ),
    "the first valid position": (
        "{x} + gather({x}, argmax(cast({keep}, to=int), axis=1), axis=1)[:, none]",
        SIDES,
    ),
    "the last valid position": (
        "{x} + gather({x}, sum(cast({keep}, to=int), axis=1) - 1, axis=1)[:, none]",
        ("right",),
    ),
    "softmax over queries": (
        "attend_by(dot, {x}, {x}, {x}, mask=visible({keep}) & query_mask({keep}), normalize=queries)",
        SIDES,
    ),
    "attention weights that each key gets": (
        "grid(dot, {x}, {x}) ; masked_softmax({p}1, {keep}[:, none] & {keep}[..., none])"
        " ; {x} * sum({p}2, axis=1)[..., none]",
        SIDES,
    ),
    "the key with the largest weight": (
        "grid(dot, {x}, {x}) ; masked_softmax({p}1, {keep}[:, none])"
        " ; gather({x}, argmax({p}2, axis=2), axis=1)",
        ("right",),
    ),
    "attention to the positions ahead": (
        "attend({x}, {x}, {x}, mask=window(1, ahead=2))",
        ("left",),
    ),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_has_a_warning(name: str) -> None:
    form, sides = LEAKS[name]
    for side in sides:
        found = compare_spec_with_padding(write_single_form(form.split(" ; "), side), 0)
        assert found
        assert found.effect
        assert found.warned


MISTAKES: dict[str, tuple[object, str, object]] = {
    "an index selects the same position on every axis": (
        padding_dataflow.PaddingDataflow,
        "_is_indexed_by_position",
        lambda self, length, count: True,
    ),
    "padding stays in place when sorted": (
        padding_order_and_windows,
        "_is_reading_only_padding",
        lambda use: use.is_left_padded and use.dependence.min_offset >= 0,
    ),
    "a slice keeps the zeros on both sides": (
        padding_zeros,
        "find_preserved_padding_sides",
        lambda use: frozenset({"left", "right"}),
    ),
    "every sum is a softmax denominator": (
        padding_nonfinite,
        "_is_softmax_denominator",
        lambda padded_result: True,
    ),
    "distances on a concatenated axis have no effect": (
        padding_safe_ops,
        "_is_merged_use_neutral",
        lambda use: True,
    ),
    "no iteration of a masked loop reads padding": (
        padding_dataflow,
        "is_masked_loop_padding_invariant",
        lambda node, operand_facts, padded_lengths, infer_body: True,
    ),
    "every reduction ignores copies of the ends": (
        padding_order_and_windows,
        "_is_reduction_without_copies",
        lambda op, source: isinstance(op, ops.Reduce),
    ),
    "padded copies are reported by no op": (
        padding_dataflow,
        "copies_padded_edge",
        lambda use, op: False,
    ),
    "every sum has the sign of zero": (
        padding_constants,
        "_has_sign",
        lambda result, value, axis, sign: True,
    ),
    "every difference is the last index": (
        padding_dataflow,
        "is_last_valid_index",
        lambda node, padding_mask: node.op == ops.Arith("sub"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_planted_mistake_is_detected(mistake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place, name, wrong = MISTAKES[mistake]
    monkeypatch.setattr(place, name, wrong)
    found = [
        check_padding(elaborate_padded_spec(write_single_form(form.split(" ; "), side).text))
        for form, sides in LEAKS.values()
        for side in sides
    ]
    assert not all(found)


HALVES = "concat([{x}, {x}], axis=1) ; merge(split({p}1, into=[2, 2], axis=2), axis=1)"
SIDE_HELPS = {
    f"{HALVES} ; {{x}} + sum({{p}}2, axis=1)[:, none, none, 0]": "",
    "concat([{x}[:, 1:], zeros(shape=[batch, 1, 4])], axis=1)": "left",
    "{x} + {x}[:, 0][:, none]": "right",
}
"""The padding side that the help declares: "" where neither side is clean."""


@pytest.mark.parametrize("form", SIDE_HELPS)
def test_the_help_declares_a_side_that_is_clean(form: str) -> None:
    spec = write_single_form(form.split(" ; "), "")
    (warning,) = check_padding(elaborate_padded_spec(spec.text))
    side = SIDE_HELPS[form]
    help = f"if all padding is on the {side}, declare it: `keep: keep[batch, n] {side}`"
    assert warning.helps == ((help,) if side else ())
    if side:
        text = spec.text.replace("keep: keep[batch, n] ", f"keep: keep[batch, n] {side}")
        assert not check_padding(elaborate_padded_spec(text))


@pytest.mark.parametrize("name", CLEAN)
def test_a_clean_layer_has_no_warning(name: str) -> None:
    form, sides = CLEAN[name]
    for side in sides:
        assert not check_padding(
            elaborate_padded_spec(write_single_form(form.split(" ; "), side).text)
        )


@pytest.mark.parity
@pytest.mark.parametrize("side", SIDES)
def test_a_proof_about_a_single_layer_is_not_contradicted(side: str) -> None:
    found = [
        (
            form,
            pooled,
            compare_spec_with_padding(write_single_form(form, side, is_pooled=pooled), 0),
        )
        for form in (*LAYER_FORMS, *LOOP_FORMS, *(c[0].split(" ; ") for c in CLEAN.values()))
        for pooled in (False, True)
    ]
    assert not [f for f in found if f[2] and f[2].effect and not f[2].warned]


@pytest.mark.parity
@pytest.mark.parametrize("start", range(0, MANY, CHUNK))
def test_proofs_about_rare_ops_are_not_contradicted(start: int) -> None:
    seeds = range(start, start + CHUNK)
    found = [compare_spec_with_padding(write_rare_spec(seed), seed) for seed in seeds]
    warned = [f for f in found if f and f.warned]
    assert not [f for f in found if f and f.effect and not f.warned]
    assert len(warned) < 0.8 * CHUNK
    assert sum(bool(f.effect) for f in warned) >= MIN_SHARE * len(warned)
