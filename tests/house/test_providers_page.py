"""docs/providers.md agrees with its record for every runtime and every built-in spec."""

import json

from support.other_runtimes import RUNTIMES
from support.provider_operators import read_operator_lists
from support.provider_report import PAGE, RECORD, fill_page
from support.small_configs import SMALL_CONFIGS

MADE = json.loads(RECORD.read_text("utf-8"))


def test_tables_equal_the_record() -> None:
    text = PAGE.read_text("utf-8")
    assert fill_page(MADE, text) == text, "run `make providers`"


def test_every_runtime_and_operator_list_is_included() -> None:
    assert set(MADE["runs"]) <= set(RUNTIMES)
    assert set(MADE["lists"]) == set(read_operator_lists())
    for run in MADE["runs"].values():
        assert set(run["specs"]) <= set(SMALL_CONFIGS)


def test_operator_lists_have_a_source() -> None:
    for known in read_operator_lists().values():
        assert len(known.commit) == 40
        assert known.read >= "2026-11-22"
        assert known.operators
