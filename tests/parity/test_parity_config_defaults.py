"""A key that a config.json leaves out means what the published class takes for it.

For every shipped spec that reads a published type, whichever there are: the config of a
file that says nothing but its type is that of a file in which the class has written all
of its defaults.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from specc.elaborate.config import Reader
from specc.elaborate.config_json import config_source, read_config
from specc.elaborate.data import data_of
from specc.elaborate.model import context_of, elaborate, requirements
from specc.elaborate.modules import Program, program_of
from specc.ir.write import write
from specc.lang import tree
from specc.library.files import Files, shipped

pytestmark = pytest.mark.parity

LIBRARY = Files()


def families() -> Iterator[tuple[str, str]]:
    """Every spec of a published class, and every type that it reads."""
    for name in shipped():
        program = program_of(LIBRARY.open(name), LIBRARY)
        if len(program.chain) > 1 or name in OTHERS:
            continue
        entries = [e for i, _ in program.items(tree.Config) for e in i.entries]
        for entry in entries:
            if isinstance(entry, tree.Expect) and entry.key == "model_type":
                yield from ((name, type) for type in entry.values)


OTHERS = ("vit_segmenter", "vision_encoder_decoder")
"""Specs that read the files of a class and are another model; or are made of two others,
which a file always names: without them it is refused (E0227).
"""


def reader_of(data: dict[str, Any]) -> Reader:
    """How the config is read from a file that says this."""
    raw = read_config(config_source(json.dumps(data).encode(), "config.json"))
    return Reader(published=LIBRARY.published, raw=raw)


def values(program: Program, reader: Reader) -> dict[str, object]:
    """Every config value, as a manifest has it."""
    found = requirements(context_of(LIBRARY), program, reader)
    return {name: data_of(value) for name, value in found.items()}


def silent_of(written: dict[str, Any]) -> dict[str, Any]:
    """Types alone, also of the models that it is made of."""
    parts = {
        n: silent_of(v)
        for n, v in written.items()
        if isinstance(v, dict) and "model_type" in v
    }
    return {"model_type": written["model_type"], **parts}


@pytest.mark.parametrize(("spec", "type"), [*families()], ids=lambda name: name)
def test_what_is_left_out_is_what_the_class_takes(spec: str, type: str) -> None:
    program = program_of(LIBRARY.open(spec), LIBRARY)
    kind = CONFIG_MAPPING[type]
    said = silent_of(kind().to_dict() | {"model_type": type})
    whole = kind(**{n: v for n, v in said.items() if isinstance(v, dict)})
    silent = reader_of(said)
    told = reader_of(json.loads(whole.to_json_string(use_diff=False)))
    ours, theirs = values(program, silent), values(program, told)
    differ = {n: (v, theirs[n]) for n, v in ours.items() if v != theirs[n]}
    # What each layer is may be written out where a rule says the same, and what nobody
    # reads then may be missing: the graph tells. Stops are in no graph.
    assert "stop" not in differ, differ
    if differ:
        made = [elaborate(program, LIBRARY, reader).graph for reader in (silent, told)]
        assert write(made[0]) == write(made[1]), differ
