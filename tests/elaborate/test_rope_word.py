"""`rope(…)` in a spec says what the same settings in a config.json say, which the parity
tests hold to the published code.
"""

import json
from pathlib import Path

import pytest

from specc.compiler.spec import elaborated, open_spec
from specc.ir import ops

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
]


def angles(folder: Path, source: str, usual: str, config: str = "") -> ops.RopeAngles:
    path = folder / "m.specc"
    path.write_text(SPEC.format(source=source, usual=usual))
    graph = elaborated(open_spec(str(path), config=config)).graph
    (made,) = (n.op for n, _ in graph.nodes if isinstance(n.op, ops.RopeAngles))
    return made


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_the_word_says_what_a_file_says(
    kind: str, options: dict[str, object], tmp_path: Path
) -> None:
    given = "".join(
        f", {n}={str(v).lower() if isinstance(v, bool) else v}"
        for n, v in options.items()
    )
    said = angles(tmp_path, "", f"rope(theta=100.0, kind={kind}{given})")
    names = {"original": "original_max_position_embeddings"}
    table = {names.get(n, n): v for n, v in options.items()}
    config = {"rope_parameters": {"rope_type": kind, "rope_theta": 100.0, **table}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    file = str(tmp_path / "config.json")
    told = angles(tmp_path, "from rope_config(theta=1.0)", "rope(theta=1.0)", file)
    assert said == told
    assert said.frequencies
