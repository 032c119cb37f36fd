"""Golden tests of the printers: canonical `.specc`, then canonical YAML."""

from collections.abc import Callable

import pytest

from specc.diagnostics.diagnostic import Source
from specc.syntax.dsl.dsl_parser import parse_dsl
from specc.syntax.dsl.dsl_printer import format_dsl
from specc.syntax.yaml.yaml_printer import format_yaml


@pytest.mark.golden("parse")
def test_canonical_text(golden: Callable[[Callable[[str], str]], None]) -> None:
    def print_both(text: str) -> str:
        file = parse_dsl(Source("a.specc", text))
        return f"{format_dsl(file)}~~~~ as YAML\n{format_yaml(file)}"

    golden(print_both)
