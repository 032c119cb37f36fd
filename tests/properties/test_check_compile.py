"""Specs that `check_spec` accepts compile: no error of a spec appears only with weights.

Built-in specs, those of the documentation and of messages, and mutated ones: if `check_spec`
accepts a spec, it compiles with random weights, unless a file is missing or the weights are too
large for the test.
"""

import dataclasses
import random
import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.random_length_specs import make_length_spec
from support.small_configs import SMALL_CONFIGS
from support.spec_mutants import (
    SpecMutant,
    choose_small_value,
    list_spec_paths,
    make_mutant,
    mutate_tree,
    open_library,
)

from specc.analysis.check_report import analyze_graph
from specc.diagnostics.diagnostic import Source, SpeccError
from specc.driver.compile_model_and_graph_selection import compile_model
from specc.driver.compile_options import CompileOptions
from specc.driver.preprocessing_section import FILE_ERROR_CODES
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import LoadedSpec, open_spec
from specc.driver.weight_sources import WeightSources, load_parameters
from specc.driver.weights_section_and_load_transforms import count_untied_parameters
from specc.frontend.config_values import ConfigReadOptions
from specc.frontend.spec_modules import build_module, build_program, collect_fields_by_path
from specc.ir.dim import Dim
from specc.library.spec_file_lookup import get_specs_directory, read_spec_file
from specc.syntax import ast
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.parse import decode_spec, parse_spec
from specc.weights.formats.safetensors import write_safetensors
from specc.weights.parameter_sources import RandomInitWeights, read_parameter

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LARGEST = 2_000_000
"""Maximum number of weight values that the test creates."""
BESIDE = (ast.WeightsSection, ast.PreprocessingSection, ast.GenerateSection, ast.ConfigSection)
"""Sections other than the graphs."""


def check_accepts(spec: LoadedSpec) -> bool:
    """Return True if `check_spec` accepts the spec, with numbers for all config values."""
    try:
        model = check_spec(spec).model
        if model is None:
            return False
        grows = model.generation
        proved = (
            analyze_graph(model.graph, grows.sequence_input, grows.logits_output, model.defaults)
            if grows
            else analyze_graph(model.graph)
        )
    except SpeccError:
        return False
    return not proved.errors and (count_untied_parameters(model.graph).number or 0) <= LARGEST


def list_compile_codes(spec: LoadedSpec, directory: Path) -> list[str]:
    """Return the codes of errors of `compile`, except missing files."""
    try:
        compile_model(
            spec, CompileOptions(output=str(directory / "model.onnx"), init=0, no_load=True)
        )
    except SpeccError as failed:
        return [d.code for d in failed.diagnostics if d.code not in FILE_ERROR_CODES]
    return []


def make_mutated_spec(given: SpecMutant) -> LoadedSpec | None:
    """Return a mutant as a spec with small sizes; None if it cannot be parsed."""
    try:
        module = build_module(parse_spec(decode_spec(given.data, given.name)), given.name)
        module.directory = get_specs_directory() / "models"
        program = build_program(module, open_library())
    except SpeccError:
        return None
    fixed = SMALL_CONFIGS.get(given.name.removesuffix(".specc"), {})
    values = {
        p: n
        for p, e in collect_fields_by_path(program.iterate_fields()).items()
        if (n := Dim.from_value(v) if type(v := fixed.get(p)) is int else choose_small_value(e, p))
        is not None
    }
    return LoadedSpec(program, open_library(), ConfigReadOptions(trial_values=values), given.name)


def mutate_section(seed: int) -> SpecMutant:
    """Return a built-in model with a change in its weights, preprocessing, config or generation
    section.
    """
    rng = random.Random(seed)
    name = rng.choice([name for name in list_spec_paths() if name in SMALL_CONFIGS])
    path = list_spec_paths()[name]
    file = read_spec_file(path, path.name)
    items = [i for i in file.items if isinstance(i, BESIDE)]
    if not items:
        return SpecMutant(f"{name}.specc", format_dsl(file).encode())
    item = rng.choice(items)
    changed = mutate_tree(rng, dataclasses.replace(file, items=(item,))).items
    others = tuple(new for i in file.items for new in (changed if i is item else (i,)))
    made = dataclasses.replace(file, items=others)
    return SpecMutant(f"{name}.specc", format_dsl(made).encode(errors="surrogatepass"))


def assert_accepted_mutant_compiles(given: SpecMutant, directory: Path) -> bool:
    """Check a mutant: if `check_spec` accepts it, it compiles."""
    spec = make_mutated_spec(given)
    if spec is None or not check_accepts(spec):
        return False
    assert list_compile_codes(spec, directory) == [], given.data.decode(errors="replace")
    return True


@pytest.mark.parity
def test_mutated_sections_that_check_accepts_compile(tmp_path: Path) -> None:
    assert sum(
        assert_accepted_mutant_compiles(mutate_section(seed), tmp_path) for seed in range(80, 88)
    )


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 4000, 100))
def test_many_mutated_sections_that_check_accepts_compile(start: int, tmp_path: Path) -> None:
    assert sum(
        assert_accepted_mutant_compiles(mutate_section(seed), tmp_path)
        for seed in range(start, start + 100)
    )


@pytest.mark.slow
@pytest.mark.parametrize("start", range(50_000, 54_000, 100))
def test_many_mutated_specs_that_check_accepts_compile(start: int, tmp_path: Path) -> None:
    for seed in range(start, start + 100):
        assert_accepted_mutant_compiles(make_mutant(seed), tmp_path)


def assert_accepted_text_compiles(text: str, directory: Path) -> bool:
    """Check the text of a spec: return whether `check_spec` accepts it; then it compiles."""
    try:
        spec = open_spec(Source("spec", text))
    except SpeccError:
        return False
    if not check_accepts(spec):
        return False
    assert list_compile_codes(spec, directory) == [], text
    return True


def test_specs_with_random_lengths_that_check_accepts_compile(tmp_path: Path) -> None:
    """Equations, powers and quotients of lengths: `check_spec` reports lengths that are undefined,
    too large, or not determined by an input.
    """
    assert (
        sum(assert_accepted_text_compiles(make_length_spec(seed), tmp_path) for seed in range(40))
        > 15
    )


@pytest.mark.slow
@pytest.mark.parametrize("start", range(1000, 9000, 500))
def test_many_specs_with_random_lengths_that_check_accepts_compile(
    start: int, tmp_path: Path
) -> None:
    specs = (make_length_spec(seed) for seed in range(start, start + 500))
    assert sum(assert_accepted_text_compiles(spec, tmp_path) for spec in specs) > 200


@pytest.mark.parametrize("axis", ["a * b", "a + b", "2 * a", "a // 2"])
def test_a_product_length_is_known_without_its_factors(axis: str, tmp_path: Path) -> None:
    """The length `a * b` of an axis is known even if a and b are not: `2 * x` needs neither."""
    text = (
        "specc 1\nmodel m\ndims a, b\n"
        f"graph g(x: float[{axis}]) -> (y: float[2, {axis}]) {{\n"
        "  return stack([x, x * 2], axis=0)\n}\n"
    )
    assert assert_accepted_text_compiles(text, tmp_path)


WRITTEN = [
    pytest.param(kind, text, id=f"{page.name}-{n}")
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    for n, (kind, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
    if kind in ("specc", "yaml") and re.match(r"specc:? 1$", text.split("\n", 1)[0])
]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text"), WRITTEN)
def test_documentation_specs_that_check_accepts_compile(
    kind: str, text: str, tmp_path: Path
) -> None:
    path = tmp_path / f"example.{kind}"
    path.write_text(text, encoding="utf-8")
    spec = open_spec(str(path))
    if check_accepts(spec):
        assert list_compile_codes(spec, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", sorted((ROOT / "tests" / "golden" / "errors").glob("*.txt")), ids=lambda p: p.stem
)
def test_message_examples_that_check_accepts_compile(case: Path, tmp_path: Path) -> None:
    """Specs whose errors appear only with weights or inputs compile."""
    text = case.read_text(encoding="utf-8").partition("----\n")[0]
    found = re.search(
        r"(?:^=== spec\.(specc|yaml)\n|\A(?![$%=]))(.*?)(?=^===|\Z)", text, re.MULTILINE | re.DOTALL
    )
    if found is None:
        return
    path = (
        tmp_path / f"spec.{found.group(1) or ('yaml' if case.stem.endswith('yaml') else 'specc')}"
    )
    path.write_text(found.group(2), encoding="utf-8")
    try:
        spec = open_spec(str(path))
    except SpeccError:
        return
    if check_accepts(spec):
        assert list_compile_codes(spec, tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL_CONFIGS)
def test_check_accepts_built_in_specs(name: str) -> None:
    sets = [
        f"{k}={str(v).lower() if isinstance(v, bool) else v}"
        for k, v in SMALL_CONFIGS[name].items()
    ]
    assert check_spec(open_spec(name, config_settings=sets)).model


WRONG = {
    "weights { tie nothere = table.weight }": "E0510",
    "weights { tie out.weight = table.weight }": "E0510",
    "weights { load nothere = x }": "E0510",
    "weights { load table.weight = turn(x) }": "E0522",
    "weights { load table.weight = transpose(x, axes=maybe) }": "E0202",
    'weights { load table.weight = transpose(x, axes="no") }': "E0522",
    "weights { load table.weight = slice(x, axis=0, start=0) }": "E0522",
    "weights { load table.weight = split(x, axis=0, part=0) }": "E0522",
    'weights { load table.weight = stack("x.{e}", e=0) }': "E0522",
    'weights { load table.weight = stack("x.{e}", f=2) }': "E0522",
    'weights { load table.weight = stack("x.{e}", e=2, f=2) }': "E0522",
    "weights { load table.weight = split(x, axis=0, part=7, into=2) }": "E0522",
    'weights { from "../x.safetensors" }': "E0803",
    "reading { ids = picture(3) }": "E0203",
    "reading { ids = image(size=[8]) }": "E0203",
    'reading { show y = choice(["a"], top=3, colors=1) }': "E0203",
    "reading { show y = bar() }": "E0203",
    'reading { ids = text(tokenizer("../t.json")) }': "E0803",
}
"""Errors in other sections than the graphs, independent of the weights."""


OTHER = """
graph h(ids: int[batch, n]) -> (y: float[batch, n, 4]) {
  return embedding(ids, size=5, dim=4) @ other
}
"""
"""A second graph with its own weights."""


def with_line(line: str, more: str, directory: Path) -> LoadedSpec:
    path = directory / "spec.specc"
    path.write_text(
        "specc 1\nmodel m\ndims batch, n\n"
        "graph g(ids: int[batch, n]) -> (y: float[batch, n, 4]) {\n"
        "  y = embedding(ids, size=5, dim=4) @ table\n  return linear(y, out=4) @ out\n}\n"
        + line
        + more,
        encoding="utf-8",
    )
    return open_spec(str(path))


@pytest.mark.parametrize("more", ["", OTHER], ids=["one graph", "two"])
@pytest.mark.parametrize("line", WRONG)
def test_check_reports_the_errors_of_compile(line: str, more: str, tmp_path: Path) -> None:
    with pytest.raises(SpeccError) as caught:
        check_spec(with_line(line, more, tmp_path))
    assert [d.code for d in caught.value.diagnostics] == [WRONG[line]]
    assert all(d.primary for d in caught.value.diagnostics)
    # a file, which a model with random weights does not need
    if WRONG[line] != "E0803":
        assert list_compile_codes(with_line(line, more, tmp_path), tmp_path) == [WRONG[line]]


def test_a_load_rule_for_another_graph_is_not_a_mistake(tmp_path: Path) -> None:
    line = "weights { load other.weight = transpose(x) }"
    assert check_accepts(with_line(line, OTHER, tmp_path))
    assert list_compile_codes(with_line(line, OTHER, tmp_path), tmp_path) == []
    assert not check_accepts(with_line(line, "", tmp_path))


TWO_HEADS = """specc 1
model m
dims batch, n

graph g(x: float[batch, n, 4]) -> (y: float[batch, n, 4]) {
  return linear(linear(x, out=4) @ body, out=4) @ first
}

graph h(x: float[batch, n, 4]) -> (y: float[batch, n, 4]) {
  return linear(linear(linear(x, out=4) @ body, out=4) @ second, out=4) @ third
}

"""
"""Two heads with a shared body; the second has weights that the first does not have."""

OF_ONE_HEAD = (
    "load first.weight = transpose(published)",
    "load second.weight = transpose(published)",
    "tie third.weight = second.weight",
    "tie third.weight = body.weight",
    "tie first.weight = second.weight",
    'ignore "second.*"',
)
"""Weight rules that apply to one of the two graphs, or to a part of it."""


def two_heads(rule: str, directory: Path) -> LoadedSpec:
    path = directory / "heads.specc"
    path.write_text(f"{TWO_HEADS}weights {{\n  {rule}\n}}\n", encoding="utf-8")
    return open_spec(str(path))


@pytest.mark.parametrize("rule", OF_ONE_HEAD)
@pytest.mark.parametrize("graph", ["g", "h"])
def test_weight_rules_apply_to_graphs_that_contain_the_weights(
    rule: str, graph: str, tmp_path: Path
) -> None:
    spec = two_heads(rule, tmp_path)
    model = check_spec(spec, graph).model
    assert model
    drawn = load_parameters(spec, model.graph, WeightSources(init=0))
    assert isinstance(drawn, RandomInitWeights)
    tensors = {name: read_parameter(drawn, name) for name in model.graph.parameters}
    for name in ("first.weight", "second.weight"):
        if rule.startswith(f"load {name}") and name in tensors:
            tensors["published"] = np.ascontiguousarray(tensors.pop(name).T)
    write_safetensors(tmp_path / "w.safetensors", tensors)
    with closing(
        load_parameters(spec, model.graph, WeightSources(weights=str(tmp_path / "w.safetensors")))
    ) as read:
        for name in model.graph.parameters:
            assert (read_parameter(read, name) == read_parameter(drawn, name)).all()


@pytest.mark.parametrize(
    "rule",
    [
        "load fourth.weight = x",
        "tie fourth.weight = third.weight",
        "tie third.weight = fourth.weight",
    ],
)
@pytest.mark.parametrize("graph", ["g", "h"])
def test_a_weight_rule_for_no_graph_is_refused(rule: str, graph: str, tmp_path: Path) -> None:
    with pytest.raises(SpeccError) as caught:
        check_spec(two_heads(rule, tmp_path), graph)
    (fault,) = caught.value.diagnostics
    assert fault.code == "E0510"
    assert "`fourth.weight`" in str(fault.title)
