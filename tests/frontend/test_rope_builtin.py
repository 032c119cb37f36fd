"""`rope(…)` in a spec matches the same settings in a config.json (compared by the parity tests)."""

import json
import math
from pathlib import Path

import pytest

from specc.artifact.generation_metadata import find_length_bounds
from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.ir import ops
from specc.ir.graph import Graph

SPEC = """specc 1
model m
config {{ turn: rope {source} = {usual} }}
dims b, n
graph g(x: float[b, n, 16]) -> (y: float[b, n, 16]) {{
  h = insert(x, axis=1)
  return squeeze(rotate(h, positions(x), turn, pairs=half), axis=1)
}}
"""
YARN = {"factor": 4.0, "original": 16}
CASES = [
    ("linear", {"factor": 3.0}),
    ("llama3", {"factor": 8.0, "original": 16}),
    ("llama3", {"factor": 8.0, "original": 16, "low_freq_factor": 2.0}),
    ("yarn", YARN),
    ("yarn", {**YARN, "beta_fast": 8.0, "beta_slow": 0.5}),
    ("yarn", {**YARN, "truncate": False}),
    ("yarn", {**YARN, "attention_factor": 1.3}),
    ("yarn", {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4}),
    ("proportional", {"part": 0.25}),
    ("proportional", {"part": 0.6, "factor": 8.0}),
]


def angles(
    directory: Path, source: str, usual: str, config: str = "", longest: int = 0
) -> ops.RopeAngles:
    graph = build_rope_graph(directory, source, usual, config, longest)
    (made,) = (n.op for n, _ in graph.nodes if isinstance(n.op, ops.RopeAngles))
    return made


def build_rope_graph(
    directory: Path, source: str, usual: str, config: str = "", longest: int = 0
) -> Graph:
    path = directory / "m.specc"
    path.write_text(SPEC.format(source=source, usual=usual))
    return elaborate_spec(open_spec(str(path), config=config, context_length=longest)).graph


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_rope_function_matches_config_json(
    kind: str, options: dict[str, object], tmp_path: Path
) -> None:
    given = "".join(
        f", {n}={str(v).lower() if isinstance(v, bool) else v}" for n, v in options.items()
    )
    said = angles(tmp_path, "", f"rope(theta=100.0, kind={kind}{given})")
    names = {"original": "original_max_position_embeddings", "part": "partial_rotary_factor"}
    table = {names.get(n, n): v for n, v in options.items()}
    config = {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **table}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = str(tmp_path / "config.json")
    told = angles(tmp_path, "from rope_config(theta=1.0)", "rope(theta=1.0)", file)
    assert said == told
    assert said.frequencies


@pytest.mark.parametrize("part", [3, 7, 15])
def test_odd_width_rotates_one_more_feature(part: int, tmp_path: Path) -> None:
    """transformers has `ceil(part / 2)` frequencies `theta ** (-2 n / part)`, e.g. for
    `Glm4MoeConfig()`: 0.5 of 42 features."""
    path = tmp_path / "m.specc"
    path.write_text(
        SPEC.format(source="", usual="rope(theta=100.0)").replace("=half", f"=half, dim={part}")
    )
    (made,) = (
        n.op
        for n, _ in elaborate_spec(open_spec(str(path))).graph.nodes
        if isinstance(n.op, ops.RopeAngles)
    )
    assert made.dim == part + 1
    assert made.frequencies == pytest.approx([100.0 ** (-n / part) for n in range(0, part, 2)])


SHORT, LONG = [1.0 + n / 4 for n in range(8)], [2.0 + n for n in range(8)]
SWITCHED = (
    f"rope(theta=100.0, kind=longrope, factor=4.0, original=16, divisors={SHORT}, beyond={LONG})"
)
GROWING = "rope(theta=100.0, kind=dynamic, factor=3.0, original=16)"


@pytest.mark.parametrize(("longest", "divisors"), [(0, SHORT), (16, SHORT), (9, SHORT), (17, LONG)])
def test_longrope_divisors_depend_on_max_length(
    longest: int, divisors: list[float], tmp_path: Path
) -> None:
    """arXiv:2402.13753, eq. 3, and the maximum length of the model."""
    graph = build_rope_graph(tmp_path, "", SWITCHED, longest=longest)
    made = angles(tmp_path, "", SWITCHED, longest=longest)
    wanted = [100.0 ** (-n / 8) / by for n, by in enumerate(divisors)]
    assert made.frequencies == pytest.approx(wanted, rel=1e-12)
    assert made.factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(16)))
    bound = find_length_bounds(graph)["n"]
    assert bound.high == made.max_positions == (longest or 16)
    assert "--context-length" in bound.reason


@pytest.mark.parametrize(("longest", "grown"), [(0, 1.0), (16, 1.0), (8, 1.0), (40, 5.5)])
def test_dynamic_scaling_increases_theta(longest: int, grown: float, tmp_path: Path) -> None:
    """arXiv:2309.00071, sec. 3.3: theta grows with the length beyond the original length."""
    made = angles(tmp_path, "", GROWING, longest=longest)
    theta = 100.0 * grown ** (16 / 14)
    assert made.frequencies == pytest.approx([theta ** (-n / 8) for n in range(8)])
    assert made.max_positions == (longest or 16)


def test_unused_context_length_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match="E0435"):
        angles(tmp_path, "", "rope(theta=100.0)", longest=40)


@pytest.mark.parametrize(
    ("usual", "code"),
    [
        ("rope(theta=100.0, kind=dynamic, factor=3.0)", "E0201"),
        (SWITCHED.replace(f", beyond={LONG}", ", longest=8"), "E0201"),
        (SWITCHED.replace("beyond=[2.0, ", "beyond=[") + "", "E0203"),
        ("rope(theta=100.0, kind=linear, factor=3.0, longest=8)", "E0201"),
        (GROWING.replace("original=16", "original=0"), "E0203"),
    ],
)
def test_invalid_rope_options_are_rejected(usual: str, code: str, tmp_path: Path) -> None:
    longest = 64 if "beyond" in usual else 0
    with pytest.raises(SpeccError, match=code):
        angles(tmp_path, "", usual, longest=longest)


LAYERS = {
    "far": {"rope_type": "linear", "rope_theta": 5e5, "factor": 8.0},
    "near": {"rope_theta": 77.0},
}


@pytest.mark.parametrize(
    ("config", "far", "near"),
    [
        ({"rope_parameters": LAYERS}, (5e5, 8.0), 77.0),
        ({"rope_parameters": {"near": {"rope_theta": 77.0}}}, (10.0, 1.0), 77.0),
        ({"rope_parameters": {"far": None, "near": None}}, (10.0, 1.0), 20.0),
        (
            {
                "rope_theta": 3.0,
                "near_base": 4.0,
                "rope_scaling": {"type": "linear", "factor": 2.0},
            },
            (3.0, 2.0),
            4.0,
        ),
        ({}, (10.0, 1.0), 20.0),
    ],
)
def test_settings_per_layer_type(
    config: dict[str, object], far: tuple[float, float], near: float, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = str(tmp_path / "config.json")
    whole = angles(tmp_path, 'from rope_config(theta=10.0, layers="far")', "rope(theta=1.0)", file)
    theta, factor = far
    plain = [theta ** (-n / 8) / factor for n in range(8)]
    assert (whole.frequencies or plain) == pytest.approx(plain)
    assert whole.theta == theta
    local = 'from rope_config(theta=20.0, layers="near", base="near_base", scaled=false)'
    found = angles(tmp_path, local, "rope(theta=1.0)", file)
    assert (found.theta, found.frequencies) == (near, ())


@pytest.mark.parametrize(
    ("source", "config", "code"),
    [
        ("", {"rope_parameters": LAYERS}, "E0403"),
        (', layers="far"', {"rope_parameters": {"rope_theta": 5.0}}, "E0403"),
        (', layers="far"', {"rope_parameters": {"far": 3}}, "E0403"),
        (", thta=3.0", {}, "E0406"),
        (", scaled=3", {}, "E0406"),
        ("", {"rope_scaling": {"type": "longrope", "long_factor": [1.0] * 8}}, "E0403"),
        ("", {"rope_scaling": {"type": "su", "short_factor": [1.0] * 8, "long_factor": 3.0}}, "E0403"),
        ("", {"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 7, "long_factor": [1.0] * 8}}, "E0203"),
        ("", {"max_position_embeddings": 8, "rope_scaling": {"type": "dynamic"}}, "E0403"),
        ("", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "E0403"),
    ],
)  # fmt: skip
def test_invalid_config_settings_are_rejected(
    source: str, config: dict[str, object], code: str, tmp_path: Path
) -> None:
    lengths = {"max_position_embeddings": 64} if "dynamic" not in str(config) else {}
    (tmp_path / "config.json").write_text(json.dumps({**lengths, **config}))
    with pytest.raises(SpeccError, match=code):
        angles(
            tmp_path,
            f"from rope_config(theta=10.0{source})",
            "rope(theta=1.0)",
            str(tmp_path / "config.json"),
        )


AXES = SPEC.replace("positions(x)", "{at}").replace("pairs=half", "pairs=half{options}")


def rotation(directory: Path, at: str, options: str) -> ops.RopeAngles:
    path = directory / "m.specc"
    path.write_text(AXES.format(source="", usual="rope(theta=100.0)", at=at, options=options))
    graph = elaborate_spec(open_spec(str(path))).graph
    (made,) = (n.op for n, _ in graph.nodes if isinstance(n.op, ops.RopeAngles))
    return made


THREE = "[positions(x), 2 * positions(x), 3 * positions(x)]"


@pytest.mark.parametrize(
    ("at", "options", "axes"),
    [
        (THREE, ", sections=[2, 3, 3], order=contiguous", (0, 0, 1, 1, 1, 2, 2, 2)),
        (THREE, ", sections=[4, 2, 2], order=interleaved", (0, 1, 2, 0, 1, 2, 0, 0)),
        (THREE, ", dim=8, sections=[2, 1, 1], order=interleaved", (0, 1, 2, 0)),
        (
            "[positions(x), positions(x)]",
            ", sections=[3, 5], order=contiguous",
            (0,) * 3 + (1,) * 5,
        ),
        ("[positions(x)]", "", ()),
    ],
)
def test_position_axes_of_feature_pairs(
    at: str, options: str, axes: tuple[int, ...], tmp_path: Path
) -> None:
    assert rotation(tmp_path, at, options).axes == axes


@pytest.mark.parametrize(
    ("at", "options", "code"),
    [
        (THREE, "", "E0201"),
        (THREE, ", sections=[2, 3, 3]", "E0201"),
        ("positions(x)", ", sections=[8], order=contiguous", "E0201"),
        (THREE, ", sections=[4, 4], order=contiguous", "E0203"),
        (THREE, ", sections=[2, 3, 4], order=contiguous", "E0203"),
        ("[positions(x), x[:, :, 0]]", ", sections=[4, 4], order=contiguous", "E0301"),
    ],
)
def test_invalid_position_axes_are_rejected(
    at: str, options: str, code: str, tmp_path: Path
) -> None:
    with pytest.raises(SpeccError, match=code):
        rotation(tmp_path, at, options)


AXIAL = "rope(theta=100.0, kind=axial)"


def test_axial_frequencies_start_again_on_each_axis(tmp_path: Path) -> None:
    path, options = tmp_path / "m.specc", ", sections=[2, 6], order=contiguous"
    at = "[positions(x), positions(x)]"
    path.write_text(AXES.format(source="", usual=AXIAL, at=at, options=options))
    graph = elaborate_spec(open_spec(str(path))).graph
    (made,) = (n.op for n, _ in graph.nodes if isinstance(n.op, ops.RopeAngles))
    assert made.axes == (0,) * 2 + (1,) * 6
    wanted = [100.0 ** (-n / 2) for n in range(2)] + [100.0 ** (-n / 6) for n in range(6)]
    assert made.frequencies == pytest.approx(wanted)


def test_axial_frequencies_need_several_axes(tmp_path: Path) -> None:
    with pytest.raises(SpeccError, match="E0203"):
        angles(tmp_path, "", AXIAL)


def test_settings_in_a_section(tmp_path: Path) -> None:
    """The keys of the section apply if the file has it, those at the top level otherwise."""
    source, file = 'from rope_config(theta=10.0, section="text_config")', tmp_path / "config.json"
    for config, theta in (
        ({"rope_theta": 3.0, "text_config": {"rope_theta": 5.0}}, 5.0),
        ({"rope_theta": 3.0}, 3.0),
        ({"rope_theta": 3.0, "text_config": {}}, 10.0),
    ):
        file.write_text(json.dumps(config))
        assert angles(tmp_path, source, "rope(theta=1.0)", str(file)).theta == theta
