"""Every built-in spec compiles at the oldest, the default and the newest opset for both CPU targets
and agrees with the reference.

Each runs for both targets at two opsets (a model family for one target): those of MECHANISM_SPECS
for one target by default, the others with `make parity`; all opsets under `slow`. Small config
values are in SMALL_CONFIGS (tests/support/small_configs.py).
"""

from pathlib import Path

import pytest
from support.mechanism_sample import MECHANISM_SPECS, list_mechanisms, sample_mechanisms
from support.parameter_sweeps import cover_axes
from support.small_configs import FAMILIES, SMALL_CONFIGS, list_specs_with
from support.verification_lines import list_model_lines

import specc
from specc.cli.list_doc_explain import read_spec_title
from specc.cli.main import main
from specc.driver.spec_loader import open_spec
from specc.frontend.symbolic_check import check_spec_symbolically
from specc.huggingface.model_family import read_supported_config_keys, read_supported_model_types
from specc.library.spec_file_lookup import (
    SPEC_SUFFIXES,
    find_builtin_specs,
    get_specs_directory,
    read_spec_file,
)
from specc.syntax import ast

TRAINED = {"dates", "digits", "numbers", "xor"}
TARGETS, OPSETS = ("onnx", "ort-cpu"), (17, 20, 23, 26)
SPECS = list(SMALL_CONFIGS)
COSTLY = frozenset(
    [
        "clap",
        "conditional_detr",
        "conformer",
        "convbert",
        "deformable_detr",
        "depth_anything",
        "detr",
        "encodec",
        "florence2",
        "gemma3",
        "gemma3n_text",
        "got_ocr2",
        "grounding_dino",
        "grounding_dino_encoder",
        "luong_concat",
        "mask2former",
        "mistral3",
        "mobilenet_v2",
        "qwen3_vl",
        "regnet",
        "resnet",
        "rt_detr",
        "sam",
        "streaming_ctc",
        "t5",
        "vision_encoder_decoder",
        "zamba2",
    ]
)
"""Specs whose symbolic check takes longest."""


def _kept(spec: int, target: int, opset: int) -> bool:
    """Both targets, each at an opset of its own; one of the two for a family, of which
    the parity suite runs every head.
    """
    both = SPECS[spec] not in FAMILIES or target == spec // len(OPSETS) % 2
    return both and opset == (spec + 2 * target) % len(OPSETS)


GENERATED = {
    "bloom",
    "dates",
    "deepseek_v2",
    "ernie4_5",
    "gemma3n_text",
    "llama4_text",
    "luong_dot",
    "qwen3_vl",
    "t5",
    "transformer",
}
"""Specs whose packages test_every_package.py compiles and compares in the default suite."""
SLOW = {"llava_next", *GENERATED}
"""Specs of the parity suite; llava_next takes seconds to verify: its images have many patches."""
LATER = {
    (name, target)
    for n, name in enumerate(SPECS)
    for target in TARGETS
    if name not in MECHANISM_SPECS - SLOW or (name not in FAMILIES and target == TARGETS[n % 2])
}
"""Cases that run with `make parity`, except slow ones."""
SWEEP = [
    pytest.param(*case.values, marks=case.marks or pytest.mark.parity)
    if case.values[:2] in LATER
    else case
    for case in cover_axes(_kept, SPECS, TARGETS, OPSETS)
]


def test_every_spec_has_small_config_values() -> None:
    assert set(SMALL_CONFIGS) == set(find_builtin_specs())


@pytest.mark.parity
def test_sample_has_every_mechanism() -> None:
    """Add a spec with a new mechanism to MECHANISM_SPECS."""
    mechanisms = {spec: list_mechanisms(spec) for spec in SPECS}
    sampled = set().union(*(mechanisms[spec] for spec in MECHANISM_SPECS))
    missing = {spec: found - sampled for spec, found in mechanisms.items()}
    assert {spec: found for spec, found in missing.items() if found} == {}


@pytest.mark.parametrize(("spec", "target", "opset"), SWEEP)
def test_every_spec_compiles_loads_and_agrees_with_the_reference(
    spec: str, target: str, opset: int, tmp_path: Path
) -> None:
    path = tmp_path / f"{spec}.onnx"
    seed = None if spec in TRAINED else 0
    specc.compile(spec, path, set=SMALL_CONFIGS[spec], init=seed, target=target, opset=opset)
    assert list(list_model_lines(specc.load(path).selected_model, rounds=2))


def _check_text(path: Path) -> None:
    """Check the facts that are read from the text alone, because parsing all specs takes seconds."""
    file = read_spec_file(path, path.name)
    assert read_spec_title(path) == file.doc
    configs = [item for item in file.items if isinstance(item, ast.ConfigSection)]
    expected = [e for c in configs for e in c.entries if isinstance(e, ast.ExpectedConfigValues)]
    types = {value for e in expected if e.key == "model_type" for value in e.values}
    assert read_supported_model_types(path) == types - {"none"}
    fields = [e for c in configs for e in c.entries if isinstance(e, ast.ConfigField)]
    keys = {s.value for e in fields for s in e.sources if isinstance(s, ast.StringLiteral)}
    assert read_supported_config_keys(path) == {key.partition(".")[0] for key in keys}


def _check_graphs(spec: str, chosen: slice) -> None:
    opened = open_spec(spec)
    for section, kind in (("generate", ast.GenerateSection), ("stream", ast.StreamSection)):
        assert (spec in list_specs_with(section)) == any(opened.program.iterate_items(kind))
    _check_text(find_builtin_specs()[spec])
    graphs = [
        block.name for block, _ in opened.program.iterate_items(ast.Block) if block.kind == "graph"
    ]
    for graph in graphs[chosen]:
        assert check_spec_symbolically(opened.program, graph)


@pytest.mark.parametrize("spec", sample_mechanisms(SPECS, {*COSTLY, *FAMILIES}))
def test_the_first_graph_passes_the_symbolic_check(spec: str) -> None:
    """`compile` skips this check for built-in specs; this test runs it. Those of model families run
    in the parity suite.
    """
    _check_graphs(spec, slice(1))


@pytest.mark.parity
@pytest.mark.parametrize("spec", SPECS)
def test_some_other_graphs_pass_the_symbolic_check(spec: str) -> None:
    """Every second head of a spec, the odd ones of every other spec: most families have the same
    heads, and each is compiled with config values by tests/parity.
    """
    _check_graphs(spec, slice(1 + SPECS.index(spec) % 2, None, 2))


@pytest.mark.slow
@pytest.mark.parametrize("spec", SPECS)
def test_the_other_graphs_pass_the_symbolic_check(spec: str) -> None:
    _check_graphs(spec, slice(2 - SPECS.index(spec) % 2, None, 2))


@pytest.mark.parametrize("stride", [10, pytest.param(1, marks=pytest.mark.parity)])
def test_built_in_specs_are_formatted(stride: int, capsys: pytest.CaptureFixture[str]) -> None:
    directories = (get_specs_directory() / name for name in ("std", "models"))
    paths = [
        p
        for directory in directories
        for p in sorted(directory.iterdir())
        if p.suffix in SPEC_SUFFIXES
    ]
    assert main(["fmt", "--check", *map(str, paths[::stride])]) == 0, capsys.readouterr().err
