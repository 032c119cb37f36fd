"""A key that a config.json leaves out means what the published class takes for it.

For every shipped spec that reads a published type, whichever there are: the config of a
file that says nothing but its type is that of a file in which the class has written all
of its defaults.
"""

import json
from collections.abc import Iterator

import pytest
from transformers import CONFIG_MAPPING

from specc.elaborate.config import Reader
from specc.elaborate.config_json import config_source, read_config
from specc.elaborate.model import context_of, elaborate, requirements
from specc.elaborate.modules import Program, program_of
from specc.elaborate.values import Known
from specc.ir.write import write
from specc.lang import tree
from specc.library.files import Files, shipped

pytestmark = pytest.mark.parity

LIBRARY = Files()


def families() -> Iterator[tuple[str, str]]:
    """Every spec, and every type that it reads."""
    for name in shipped():
        program = program_of(LIBRARY.open(name), LIBRARY)
        entries = [e for i, _ in program.items(tree.Config) for e in i.entries]
        for entry in entries:
            if isinstance(entry, tree.Expect) and entry.key == "model_type":
                yield from ((name, type) for type in entry.values)


def reader_of(data: dict[str, object]) -> Reader:
    """How the config is read from a file that says this."""
    raw = read_config(config_source(json.dumps(data).encode(), "config.json"))
    return Reader(published=LIBRARY.published, raw=raw)


def values(program: Program, reader: Reader) -> dict[str, Known]:
    """Every config value."""
    return requirements(context_of(LIBRARY), program, reader)


@pytest.mark.parametrize(("spec", "type"), [*families()], ids="-".join)
def test_what_is_left_out_is_what_the_class_takes(spec: str, type: str) -> None:
    program = program_of(LIBRARY.open(spec), LIBRARY)
    written = json.loads(CONFIG_MAPPING[type]().to_json_string(use_diff=False))
    silent, told = reader_of({"model_type": type}), reader_of(written)
    ours, theirs = values(program, silent), values(program, told)
    differ = {n: (v, theirs[n]) for n, v in ours.items() if v != theirs[n]}
    # a list of what each layer is may be written out where a rule says the same
    rules = {n for n, (a, b) in differ.items() if a is None and isinstance(b, tuple)}
    assert rules == differ.keys(), differ
    if rules:
        made = [elaborate(program, LIBRARY, reader).graph for reader in (silent, told)]
        assert write(made[0]) == write(made[1])
