"""`run`, `verify` and `show` take a package's folder as they take a model."""

from pathlib import Path

import numpy as np
import pytest
from support.two_graph_packages import write_pair_package, write_single_graph

from specc.cli.main import main


@pytest.fixture
def pair(tmp_path: Path) -> str:
    write_pair_package(tmp_path / "pair", seed=4)
    return str(tmp_path / "pair")


def test_run_takes_the_graph_that_scores_or_the_one_that_is_named(
    pair: str, tmp_path: Path
) -> None:
    for words, result, shape in (
        ([], "tags", (1, 3, 3)),
        (["--graph", "encode"], "rows", (1, 3, 8)),
    ):
        out = tmp_path / "out.npz"
        assert main(["run", pair, "[[1, 2, 3]]", *words, "-o", str(out)]) == 0
        assert np.load(out)[result].shape == shape


def test_verify_compares_every_graph(pair: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", pair, "--rounds", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == ["encode", "score"]
    assert main(["verify", pair, "--rounds", "1", "--graph", "score"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_show_says_what_a_package_holds_and_shows_the_tree_of_one_graph(
    pair: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", pair]) == 0
    said = capsys.readouterr().out
    assert "package of `pair`, 2 graphs" in said
    assert all(word in said for word in ("score.onnx", "encode.onnx", "model-", "bytes"))
    assert main(["show", pair, "--graph", "encode"]) == 0
    assert "result  rows: f32[batch, seq, 8]" in capsys.readouterr().out


def test_a_graph_that_is_not_there_is_a_fault_of_the_command_line(
    pair: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", pair, "[[1]]", "--graph", "step"]) == 2
    assert "error[E0832]" in capsys.readouterr().err
    assert (
        main(["run", str(write_single_graph(tmp_path, "score")), "[[1]]", "--graph", "step"]) == 2
    )
    assert "error[E0832]" in capsys.readouterr().err
