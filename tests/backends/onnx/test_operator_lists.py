"""The operators of built-in specs compared with published operator lists of providers that were not
run: docs/providers.md lists exactly the missing operators.
"""

import json

import pytest
from support.provider_operators import OperatorList, read_operator_lists
from support.provider_report import RECORD
from support.small_configs import SMALL_CONFIGS

LACKING = json.loads(RECORD.read_text("utf-8"))["lists"]
SOME = ("digits", "dates", "gpt2", "lstm_lm")
LISTS = read_operator_lists()


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.parametrize(
    "spec", [pytest.param(s, marks=[pytest.mark.slow] * (s not in SOME)) for s in SMALL_CONFIGS]
)
def test_page_lists_missing_operators(spec: str, name: str) -> None:
    assert LISTS[name].find_missing(spec) == LACKING[name].get(spec, [])


def test_operators_are_listed_by_opset_version() -> None:
    known = OperatorList("p", "s", "c", "r", "n", 17, {"Gelu": 20, "Relu": 0})
    assert known.has_operator("Gelu", 20)
    assert not known.has_operator("Gelu", 21)
    assert known.has_operator("Relu", 14)
    assert not known.has_operator("Gemm", 13)
