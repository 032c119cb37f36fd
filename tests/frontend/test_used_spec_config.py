"""A used file takes its config from the part of the config file that the call names."""

from pathlib import Path

import pytest

from specc.driver.spec_loader import elaborate_spec, open_spec

INNER = """specc 1
model inner
config { wide: int from "width" = 2 }
dims batch, n
block up(x: float[batch, n, d]) -> float[batch, n, wide] {
  return linear(x, out=wide) @ up
}
graph g(x: float[batch, n, 4]) -> float[batch, n, wide] { return up(x) }
"""
OUTER = """specc 1
model outer
use "inner.specc" as v
dims batch, n
graph f(x: float[batch, n, 4]) -> float[batch, n, _] {
  return v.up(x, config=config.parts.vision) @ v
}
"""


@pytest.mark.parametrize(
    ("config", "wide"),
    [
        ('{"parts": {"vision": {"width": 6}}}', 6),
        ('{"parts": {"vision": {}}}', 2),
        ('{"parts": {}}', 2),
        ('{"parts": {"vision": 3}}', 2),
    ],
)
def test_a_part_of_the_config_file(tmp_path: Path, config: str, wide: int) -> None:
    (tmp_path / "inner.specc").write_text(INNER)
    (tmp_path / "outer.specc").write_text(OUTER)
    (tmp_path / "config.json").write_text(config)
    spec = open_spec(str(tmp_path / "outer.specc"), config=str(tmp_path / "config.json"))
    weight = elaborate_spec(spec).graph.parameters["v.up.weight"]
    assert [d.number for d in weight.type.shape] == [wide, 4]
