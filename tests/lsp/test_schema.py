"""The JSON Schema for editors equals the generator's output, accepts every built-in spec, and
rejects wrong keys and types."""

import json
import re
from pathlib import Path

import pytest
import yaml

from docs.generators import json_schema
from specc.diagnostics.diagnostic import Source, SpeccError
from specc.library.spec_file_lookup import find_builtin_specs, get_specs_directory, read_spec_file
from specc.syntax import ast
from specc.syntax.parse import parse_spec
from specc.syntax.yaml.yaml_emitter import FIELD_KEYS
from specc.syntax.yaml.yaml_keys import STATEMENT_SCHEMAS
from specc.syntax.yaml.yaml_parser import LISTED_ITEMS, YAML_TOP_KEYS
from specc.syntax.yaml.yaml_printer import format_yaml

jsonschema = pytest.importorskip("jsonschema", reason="needs the extra dev")
ROOT = Path(__file__).parents[2]
SCHEMA = json.loads((ROOT / "specs" / "schema.json").read_text(encoding="utf-8"))
GOLDEN = ROOT / "tests" / "golden"
CODES = ("E0125", "E0126", "E0201", "E0203", "E0220")
"""What a key, or the type of a value, can be at fault for."""
NAMED = "E0203-a-curve-is-no-norm"
"""What a name stands for, no schema knows."""


class CoreSchemaLoader(yaml.SafeLoader):
    """PyYAML with the plain scalars of the YAML 1.2 core schema: `on` is a string."""


CoreSchemaLoader.yaml_implicit_resolvers = {}
for tag, pattern, first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    CoreSchemaLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{tag}", re.compile(rf"^(?:{pattern})$"), list(first)
    )


def load_core_yaml(text: str) -> object:
    """Return the value of a document. Raises yaml.YAMLError."""
    return yaml.load(text, CoreSchemaLoader)


def find_violations(text: str) -> list[str]:
    found = jsonschema.Draft7Validator(SCHEMA).iter_errors(load_core_yaml(text))
    return [f"{list(fault.absolute_path)}: {fault.message[:200]}" for fault in found]


def read_invalid_specs() -> list[object]:
    """Return the YAML specs of the golden cases with those codes."""
    found = []
    for directory in ("errors", "errors-syntax"):
        for path in sorted((GOLDEN / directory).glob("*.txt")):
            case, _, told = path.read_text(encoding="utf-8").partition("\n----\n")
            codes = set(re.findall(r"error\[(E\d+)\]", told))
            # among several codes there may be an error that no schema detects
            if codes and codes <= set(CODES) and path.stem != NAMED:
                texts = [
                    t for t in re.split(r"^=== .*\n", case, flags=re.M) if t.startswith("specc: 1")
                ]
                found += [pytest.param(t, id=f"{path.stem}-{n}") for n, t in enumerate(texts)]
    return found


def test_schema_is_draft_7() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


YAML = {name: path for name, path in find_builtin_specs().items() if path.suffix == ".yaml"}


@pytest.mark.parametrize("name", YAML)
def test_built_in_yaml_is_valid(name: str) -> None:
    assert not find_violations(YAML[name].read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", ["llama", "encoder_decoder", "llava"])
def test_converted_sample_is_valid(name: str) -> None:
    path = find_builtin_specs()[name]
    assert not find_violations(format_yaml(read_spec_file(path, path.name)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    [
        *sorted(get_specs_directory().rglob("*.specc")),
        *sorted((ROOT / "tests" / "syntax" / "examples").glob("*.specc")),
    ],
    ids=lambda p: p.stem,
)
def test_every_converted_spec_is_valid(path: Path) -> None:
    assert not find_violations(format_yaml(read_spec_file(path, path.name)))


@pytest.mark.parametrize("text", read_invalid_specs())
def test_golden_errors_are_rejected(text: str) -> None:
    assert find_violations(text)


def test_golden_errors_exist() -> None:
    assert len(read_invalid_specs()) >= 5


def test_schema_has_every_key_of_the_parser() -> None:
    """Add a new key of the language to `docs.generators.json_schema`."""
    assert set(json_schema.TOP_KEYS) == set(json_schema.TOP_DOCS) == set(YAML_TOP_KEYS)
    assert set(json_schema.ITEM_SCHEMAS) == set(LISTED_ITEMS)
    assert set(json_schema.STATEMENT_DOCS) == set(STATEMENT_SCHEMAS)
    field = SCHEMA["definitions"]["field"]["properties"]
    assert set(field) == set(FIELD_KEYS)


HEAD = "specc: 1\nmodel: m\n"


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "modle: x\n",
        HEAD + "extends: vit\nconfig: {heds: 4}\n",
        HEAD + "extends: vit\nconfig: {heads: 4.5}\n",
        HEAD + "extends: vit\nconfig: {heads: true}\n",
        HEAD + "extends: encoder_decoder\nconfig: {encoder: {layer: 4}}\n",
        HEAD + "extends: luong\nconfig: {attention_type: somewhere}\n",
        HEAD + "config: {d: 4}\n",
        HEAD + "config: {d: {type: itn}}\n",
        HEAD + "items: [{graph: g, out: float, doo: []}]\n",
        HEAD + "weights: [{tie: a}]\n",
        "specc: 2\nmodel: m\n",
        "model: m\n",
        "[]",
    ],
)
def test_mistakes_are_rejected(text: str) -> None:
    assert find_violations(text)
    if "out: float" not in text:
        return
    with pytest.raises(SpeccError):
        parse_spec(Source("a.yaml", text))


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "extends: vit\nconfig: {heads: 2 * 4, eps: 1e-5}\n",
        HEAD + "extends: luong\nconfig: {attention_type: 'local_p if true else local_m'}\n",
        HEAD + "extends: mine.yaml\nconfig: {whatever: {there: is}}\n",
        HEAD + "extends: vit\nconfig: {more: {type: int, default: 4}}\n",
        HEAD + "use: [{file: vit, as: v, from: vision_config}]\nconfig: {v: {layers: 2}}\n",
        HEAD + "items:\n- use: vit\n  as: v\n  from: k\n- config: {v: {layers: 2}}\n",
        HEAD + "config:\nitems:\nweights:\n",
    ],
)  # fmt: skip
def test_valid_forms_are_accepted(text: str) -> None:
    assert not find_violations(text)
    assert isinstance(parse_spec(Source("a.yaml", text)), ast.File)
