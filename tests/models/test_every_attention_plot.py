"""Every attention of every built-in spec is plotted as HTML, SVG and PNG, including masked
positions.
"""

from pathlib import Path
from xml.etree import ElementTree as Xml

import numpy as np
import pytest
from support.html_pages import check_page, read_page_data
from support.small_configs import SMALL_CONFIGS

import specc
from specc.drawing.attention_maps import AttentionSelection
from specc.runtime.attention_plot import capture_attention, render_attention
from specc.runtime.attention_weights import find_attention_nodes
from specc.runtime.random_inputs import choose_dim_sizes, make_random_inputs

TRAINED = {"dates", "digits", "numbers", "xor"}
FEW = ["luong_local_p", "show_attend_tell", "kv_lookup", "swin"]
"""Loops, image captioning, vectors only, windows; `parity` runs all."""


@pytest.mark.parametrize(
    "spec", [pytest.param(s, marks=[] if s in FEW else pytest.mark.slow) for s in SMALL_CONFIGS]
)
def test_every_attention_is_plotted(spec: str, tmp_path: Path) -> None:
    init = None if spec in TRAINED else 0
    specc.compile(spec, tmp_path / "m.onnx", set=SMALL_CONFIGS[spec], init=init)
    model = specc.load(tmp_path / "m.onnx").selected_model
    graph = model.manifest.graph
    given = make_random_inputs(graph, choose_dim_sizes(graph, 2), np.random.default_rng(0))
    if not find_attention_nodes(graph):
        with pytest.raises(specc.SpeccError, match="E0931"):
            capture_attention(model, given, scope="*")
        return
    seen = capture_attention(model, given, scope="*")
    page = render_attention(seen, ".html", AttentionSelection(scope="*")).content.decode()
    check_page(page)
    assert len(read_page_data(page)["maps"]) == len(seen.attention_maps.maps)
    Xml.fromstring(render_attention(seen, ".svg", AttentionSelection(scope="*")).content)
    assert render_attention(seen, ".png").content.startswith(b"\x89PNG")
    for each in seen.attention_maps.maps:
        assert each.weights.shape[1] == len(each.query_axis.labels)
        assert each.weights.shape[2] == len(each.key_axis.labels)
        # masked positions have weight 0
        assert np.abs(each.weights[each.is_masked]).max(initial=0) == 0, each.scope
