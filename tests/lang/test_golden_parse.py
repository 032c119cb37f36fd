"""What the two writers make of a text: canonical `.specc`, then canonical YAML."""

from collections.abc import Callable

import pytest

from specc.lang.dsl.parse import parse_dsl
from specc.lang.dsl.write import write
from specc.lang.yaml.write import write_yaml
from specc.text.source import Source


@pytest.mark.golden("parse")
def test_canonical_text(golden: Callable[[Callable[[str], str]], None]) -> None:
    def both(text: str) -> str:
        file = parse_dsl(Source("a.specc", text))
        return f"{write(file)}~~~~ as YAML\n{write_yaml(file)}"

    golden(both)
