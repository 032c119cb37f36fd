"""`run`, `verify` and `show` accept the directory of a package like a single model."""

from pathlib import Path

import numpy as np
import pytest
from support.two_graph_packages import write_pair_package, write_single_graph

from specc.cli.main import main


@pytest.fixture
def package(tmp_path: Path) -> str:
    write_pair_package(tmp_path / "package", seed=4)
    return str(tmp_path / "package")


def test_run_selects_the_score_or_the_named_graph(package: str, tmp_path: Path) -> None:
    for words, result, shape in (
        ([], "tags", (1, 3, 3)),
        (["--graph", "encode"], "rows", (1, 3, 8)),
    ):
        out = tmp_path / "out.npz"
        assert main(["run", package, "[[1, 2, 3]]", *words, "-o", str(out)]) == 0
        assert np.load(out)[result].shape == shape


def test_verify_compares_every_graph(package: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", package, "--rounds", "1"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == ["encode", "score"]
    assert main(["verify", package, "--rounds", "1", "--graph", "score"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_show_lists_files_or_the_tree_of_one_graph(
    package: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", package]) == 0
    said = capsys.readouterr().out
    assert "package of `pair`, 2 graphs" in said
    assert all(word in said for word in ("score.onnx", "encode.onnx", "model-", "bytes"))
    assert main(["show", package, "--graph", "encode"]) == 0
    assert "result  rows: f32[batch, seq, 8]" in capsys.readouterr().out


def test_missing_graph_is_a_usage_error(
    package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", package, "[[1]]", "--graph", "step"]) == 2
    assert "error[E0832]" in capsys.readouterr().err
    assert (
        main(["run", str(write_single_graph(tmp_path, "score")), "[[1]]", "--graph", "step"]) == 2
    )
    assert "error[E0832]" in capsys.readouterr().err
