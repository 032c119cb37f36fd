"""Cost of local attention in `show`, and its explanation."""

from pathlib import Path

import pytest
from support.local_attention_cases import BATCH, SEQ, LocalAttentionCase

from specc.cli.main import main
from specc.ir.dim import Dim, floor_divide_dims
from specc.visualize.scope_summary import summarize_graph

WIDE = 4 * (8 + 6)
"""Multiply-adds of a query and a key, over all heads."""


def count_work(setup: LocalAttentionCase, **at: int) -> tuple[Dim, Dim]:
    """Return the work of the blocked and of the dense attention."""
    root = summarize_graph(setup.graph(), at)
    return root.sum_over_subtree("multiply_adds") - root.sum_over_subtree(
        "saved_multiply_adds"
    ), root.sum_over_subtree("multiply_adds")


def test_window_cost() -> None:
    # 32 queries per block over 32 + 63 keys
    executed, whole = count_work(LocalAttentionCase(low=0, high=63))
    assert executed == WIDE * BATCH * SEQ * 95
    assert whole == WIDE * BATCH * SEQ * SEQ


def test_causal_attention_costs_half() -> None:
    executed, _ = count_work(LocalAttentionCase(low=0, high=None))
    assert executed == WIDE * BATCH * SEQ * floor_divide_dims(SEQ + 128, 2)


def test_given_length_selects_the_form() -> None:
    window = LocalAttentionCase(low=0, high=63)
    for rows, saved_work in ((192, False), (193, True)):
        executed, whole = count_work(window, seq=rows)
        assert (executed != whole) == saved_work


def test_show_omits_equal_columns(capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "d=16", "--set", "heads=2", "--set", "layers=1"]
    assert main(["show", "gpt2", *small]) == 0
    assert "if dense" in capsys.readouterr().out
    assert main(["show", "gpt2", *small, "--dims", "batch=1,seq=100"]) == 0
    assert "if dense" not in capsys.readouterr().out
    # its position embedding is too short for blocked attention
    assert main(["show", "gpt2", *small, "--set", "context=512"]) == 0
    assert "if dense" not in capsys.readouterr().out


def test_explain_attention_forms(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--set", "d=16", "--set", "heads=2", "--set", "layers=3", "--init", "0"]
    model = str(tmp_path / "m.onnx")
    assert main(["compile", "gpt2", *small, "-o", model, "--explain"]) == 0
    out = capsys.readouterr().out
    assert (
        "decoder: h.0.attn … h.2.attn: dense, above 512 positions blocked: 128 queries per block, "
        "the window is unbounded on one side\n"
    ) in out
    small += ["--set", "context=512"]
    assert main(["compile", "gpt2", *small, "-o", model, "--explain"]) == 0
    assert (
        "blocks are faster only above 512 positions, but the maximum is" in capsys.readouterr().out
    )
