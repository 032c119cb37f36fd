"""Selection of attention maps by scope, layer and head."""

import numpy as np
import pytest
from support.attention_maps import make_attention_map

from specc.diagnostics.diagnostic import SpeccError
from specc.drawing.attention_maps import AttentionSelection, parse_number_list, select_maps

MAPS = tuple(
    make_attention_map(np.ones((4, 2, 2)), scope=scope)
    for scope in ("enc.layers.0.attn", "enc.layers.1.attn", "dec.layers.1.cross", "look")
)


@pytest.mark.parametrize(
    ("text", "meant"), [("0", (0,)), ("2,0", (0, 2)), ("1-3", (1, 2, 3)), ("0-1, 1-2", (0, 1, 2))]
)
def test_number_lists_are_parsed(text, meant):
    assert parse_number_list(text, "--heads") == meant


@pytest.mark.parametrize(
    "text", ["", ",", "a", "-1", "3-1", "1-", "1.5", "٣", "1-99999", "9" * 30, "0x1", "\x1b"]
)
def test_invalid_number_lists_are_refused(text):
    with pytest.raises(SpeccError, match="E0954"):
        parse_number_list(text, "--heads")


def scopes(**said) -> list[tuple[str, tuple[int, ...]]]:
    return [(m.scope, m.heads) for m in select_maps(MAPS, AttentionSelection(**said))]


def test_a_layer_is_the_first_number_of_its_scope():
    every = (0, 1, 2, 3)
    assert scopes() == [(m.scope, every) for m in MAPS]
    assert scopes(layers=(1,)) == [(m.scope, every) for m in MAPS[1:3]]
    assert scopes(scope="dec.*", layers=(1,)) == [("dec.layers.1.cross", every)]
    assert scopes(scope="look", heads=(1, 3)) == [("look", (1, 3))]


def test_selected_heads_keep_their_numbers():
    weights = np.arange(4.0)[:, None, None] * np.ones((4, 2, 2))
    (found,) = select_maps((make_attention_map(weights),), AttentionSelection(heads=(1, 3)))
    np.testing.assert_array_equal(found.weights[:, 0, 0], [1, 3])


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ({"scope": "nothing"}, "E0931"),
        ({"layers": (7,)}, "E0954"),
        ({"scope": "look", "layers": (0,)}, "E0954"),
        ({"heads": (4,)}, "E0954"),
    ],
)
def test_missing_scopes_layers_and_heads_are_refused(said, code):
    with pytest.raises(SpeccError, match=code):
        select_maps(MAPS, AttentionSelection(**said))
