"""The rules for output paths, as a table: what exists at the path, with and without --force, for
every command."""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep

import specc
from specc.cli import main as cli
from specc.diagnostics.diagnostic import SpeccError
from specc.io import file_type_detection
from specc.io.output_paths import (
    ARRAYS_OUTPUT,
    ATTENTION_PLOT_OUTPUT,
    DRAWING_OUTPUT,
    HTML_OUTPUT,
    IMAGE_OUTPUT,
    MODEL_OUTPUT,
    SPEC_OUTPUT,
    VOCABULARY_OUTPUT,
    WEIGHTS_OUTPUT,
    OutputFileType,
    resolve_output_path,
)
from specc.weights.formats.safetensors import write_safetensors

TEXT = """specc 1
model m

dims batch, n

graph g(x: float[batch, n, 4]) -> (y: float[batch, n, 4]) {
  y, _ = attend(x, x, linear(x, out=4) @ w, mask=causal) @ look
  return y
}
"""
YES = "written"
TABLE: dict[str, tuple[str, str]] = {
    "nothing": (YES, YES),
    "nothing, in folders that are not there": (YES, YES),
    "an empty file": (YES, YES),
    "what specc wrote": (YES, YES),
    "a file of someone else": ("E0833", YES),
    "the beginning of what specc wrote": ("E0833", YES),
    "an input": ("E0814", "E0814"),
    "an input by a second name": ("E0814", "E0814"),
    "a link to an input": ("E0814", "E0814"),
    "a link to what specc wrote": (YES, YES),
    "a link to an empty file": (YES, YES),
    "a link to a file of someone else": ("E0833", YES),
    "a link to nothing": ("E0811", "E0811"),
    "a link to itself": ("E0811", "E0811"),
    "a link to a folder": ("E0811", "E0811"),
    "a link to a device": ("E0811", "E0811"),
    "a link to a link to what specc wrote": (YES, YES),
    "a folder": ("E0811", "E0811"),
    "a pipe": ("E0811", "E0811"),
    "below a file": ("E0811", "E0811"),
    "below a link to nothing": ("E0810", "E0810"),
    "back from nowhere to nothing": (YES, YES),
    "back from nowhere to a file of someone else": ("E0833", YES),
    "back from nowhere to what specc wrote": (YES, YES),
    "back from nowhere to an input": ("E0814", "E0814"),
    "with a slash behind it": ("E0811", "E0811"),
    "with a slash behind what specc wrote": ("E0811", "E0811"),
    "with a slash and a point behind it": ("E0811", "E0811"),
}
"""What lies there, and what becomes of it: without --force, and with it."""


def prepare_path(what: str, directory: Path, ending: str, mine: bytes, given: Path) -> Path | str:
    """Return the output path after creating the described situation. `mine` is the previous output
    of specc, `given` an input."""
    if what.startswith("with a slash"):
        path = directory / f"out{ending}"
        if what.endswith("wrote"):
            path.write_bytes(mine)
        return f"{path}/." if "point" in what else f"{path}/"
    if what.startswith("back from nowhere to "):
        found = prepare_path(what[len("back from nowhere to ") :], directory, ending, mine, given)
        name = Path(found).name
        return directory / "nowhere" / "at all" / ".." / ".." / name
    path, other = directory / f"out{ending}", directory / "other"
    if what.startswith("below"):
        (other.write_bytes(b"file") if what == "below a file" else other.symlink_to("nowhere"))
        return other / f"out{ending}"
    if what == "nothing, in folders that are not there":
        return directory / "some" / "where" / path.name
    contents = {
        "an empty file": b"",
        "what specc wrote": mine,
        "a file of someone else": b"precious",
    }
    kind = what.removeprefix("a link to ")
    real = other if kind != what else path
    if kind in contents:
        real.write_bytes(contents[kind])
    elif kind == "the beginning of what specc wrote":
        real.write_bytes(mine[:20])
    elif kind == "an input by a second name":
        real.hardlink_to(given)
    elif kind == "an input":
        real = given
    elif kind == "a folder":
        real.mkdir()
    elif kind == "a pipe":
        os.mkfifo(real)
    elif kind == "a device":
        real = Path("/dev/null")
    elif kind == "itself":
        real = path
    elif kind == "a link to what specc wrote":
        (directory / "third").write_bytes(mine)
        real.symlink_to("third")
    if kind != what:
        path.symlink_to(real)
        return path
    return given if what == "an input" else path


def snapshot_directory(directory: Path) -> dict[str, object]:
    """Return contents, links and modes of all files in a directory."""
    found: dict[str, object] = {}
    for path in sorted(directory.rglob("*")):
        mode = path.lstat().st_mode
        about = (
            os.readlink(path)
            if stat.S_ISLNK(mode)
            else path.read_bytes()
            if stat.S_ISREG(mode)
            else ""
        )
        found[str(path.relative_to(directory))] = (mode, about)
    return found


def get_outcome(act: Callable[[], object]) -> str:
    """Return the error code, or YES."""
    try:
        act()
    except SpeccError as failed:
        return failed.diagnostics[0].code
    return YES


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Return the bytes of one output of specc per file suffix."""
    directory = tmp_path_factory.mktemp("outputs")
    (directory / "m.specc").write_text(TEXT)
    np.save(directory / "x.npy", np.ones((1, 3, 4), np.float32))
    specc.compile(directory / "m.specc", directory / "m.onnx", init=0)
    looked, arrays = directory / "m.png", directory / "m.npz"
    run = [
        "run",
        str(directory / "m.onnx"),
        str(directory / "x.npy"),
        "--attention",
        str(looked),
        "-o",
        str(arrays),
    ]
    assert cli.main(run) == 0
    write_safetensors(directory / "m.safetensors", {"a": np.ones(3, np.float32)})
    return {p.suffix: p.read_bytes() for p in directory.iterdir()}


KINDS: dict[OutputFileType, str] = {
    MODEL_OUTPUT: ".onnx",
    IMAGE_OUTPUT: ".png",
    ARRAYS_OUTPUT: ".npz",
    WEIGHTS_OUTPUT: ".safetensors",
    SPEC_OUTPUT: ".specc",
}


@pytest.mark.parametrize("force", [False, True], ids=["", "--force"])
@pytest.mark.parametrize("what", TABLE)
def test_table_of_output_paths(
    what: str, force: bool, tmp_path: Path, outputs: dict[str, bytes]
) -> None:
    """Check every kind of output. A spec has no signature of specc, so it can only replace
    itself."""
    for kind, ending in KINDS.items():
        directory = tmp_path / ending
        directory.mkdir()
        given = directory / f"given{ending}"
        given.write_bytes(b"an input")
        path = prepare_path(what, directory, ending, outputs[ending], given)
        before = snapshot_directory(directory)
        wanted = TABLE[what][force]
        unknown = "what specc wrote" in what and what.split()[0] not in ("the", "with")
        if kind is SPEC_OUTPUT and unknown:
            assert get_outcome(
                lambda k=kind, p=path, g=given: resolve_output_path(p, k, inputs=[g], force=force)
            ) == (  # type: ignore[misc]
                YES if force else "E0833"
            )
        # a wrong parent directory is only found when the file is written
        if wanted == YES or not what.startswith("below"):
            content = outputs[ending] if kind is SPEC_OUTPUT else b""
            assert (
                get_outcome(
                    lambda k=kind, p=path, g=given, c=content: resolve_output_path(
                        p, k, inputs=[g], force=force, content=c
                    )
                )  # type: ignore[misc]
                == wanted
            ), ending
        assert snapshot_directory(directory) == before


def list_write_commands(directory: Path) -> Iterator[tuple[str, str, list[str], Path]]:
    """Yield every command that writes a file: its name, the suffix, the arguments before the path,
    and an input."""
    (directory / "m.specc").write_text(TEXT)
    np.save(directory / "x.npy", np.ones((1, 3, 4), np.float32))
    (directory / "v.txt").write_text("the 0.1 0.2\na 0.3 0.4\n")
    model = directory / "model" / "m.onnx"
    specc.compile(directory / "m.specc", model, init=0)
    run = ["run", str(model), str(directory / "x.npy")]
    yield (
        "compile",
        ".onnx",
        ["compile", str(directory / "m.specc"), "--init", "1", "--no-load", "-o"],
        directory / "m.specc",
    )
    yield "run -o", ".npz", [*run, "-o"], directory / "x.npy"
    yield "run --attention", ".png", [*run, "--attention"], directory / "x.npy"
    yield (
        "convert vectors",
        ".safetensors",
        ["convert", str(directory / "v.txt"), "-o"],
        directory / "v.txt",
    )
    yield (
        "convert a spec",
        ".yaml",
        ["convert", str(directory / "m.specc"), "-o"],
        directory / "m.specc",
    )


SOME = ["nothing, in folders that are not there", "a file of someone else", "an input by a "
                                                                            "second name",
        "a link to what specc wrote", "a link to a device", "below a link to nothing",
        "back from nowhere to a file of someone else", "with a slash behind it"]  # fmt: skip


@pytest.mark.parametrize(
    "cases",
    [SOME, pytest.param([*TABLE], marks=pytest.mark.slow)],
    ids=["some of the table", "all of it"],
)
def test_commands_follow_the_table(
    cases: list[str], tmp_path: Path, outputs: dict[str, bytes], capsys: pytest.CaptureFixture[str]
) -> None:
    for n, (name, ending, words, given) in enumerate(list_write_commands(tmp_path)):
        for what in cases:
            for force in (False, True):
                directory = tmp_path / f"{n} {what} {force}"
                directory.mkdir()
                if name == "convert a spec" and "specc wrote" in what:
                    continue  # specs have no signature of specc
                if what == "an input":
                    # its suffix differs, so another check rejects it
                    continue
                path = prepare_path(what, directory, ending, outputs.get(ending, b""), given)
                before = snapshot_directory(directory)
                capsys.readouterr()
                code = cli.main([*words, str(path), *(["--force"] if force else [])])
                said = capsys.readouterr().err
                wanted = TABLE[what][force]
                assert (code == 0) == (wanted == YES), (name, what, force, said)
                if wanted == YES:
                    real = Path(os.path.normpath(path))
                    assert real.stat().st_size > 0
                    assert real.is_symlink() == what.startswith("a link")
                    assert not (directory / "nowhere").exists()
                else:
                    assert f"error[{wanted}]" in said
                    assert snapshot_directory(directory) == before, (name, what, force)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (k, f"a{e}")
        for k in (
            MODEL_OUTPUT,
            IMAGE_OUTPUT,
            ATTENTION_PLOT_OUTPUT,
            DRAWING_OUTPUT,
            HTML_OUTPUT,
            ARRAYS_OUTPUT,
            WEIGHTS_OUTPUT,
            SPEC_OUTPUT,
            VOCABULARY_OUTPUT,
        )
        for e in (".txt", "", ".svg", ".pdf")
        if e not in k.suffixes
    ],
)
def test_suffix_of_another_format(kind: OutputFileType, name: str, tmp_path: Path) -> None:
    for force in (False, True):
        with pytest.raises(SpeccError, match=r"E0816\]: .*"):
            resolve_output_path(tmp_path / name, kind, force=force)


def test_signatures_identify_their_format_only(tmp_path: Path, outputs: dict[str, bytes]) -> None:
    tests = {
        ".onnx": file_type_detection.is_specc_model,
        ".png": file_type_detection.is_specc_png,
        ".npz": file_type_detection.is_specc_npz,
        ".safetensors": file_type_detection.is_specc_safetensors,
    }
    for ending, data in outputs.items():
        (tmp_path / "file").write_bytes(data)
        assert [e for e, test in tests.items() if test(tmp_path / "file")] == [ending] * (
            ending in tests
        )
        for cut in (*range(33), len(data) // 2, len(data) - 1):
            (tmp_path / "file").write_bytes(data[:cut])
            assert not any(
                test(tmp_path / "file")
                for e, test in tests.items()
                if e in (".onnx", ".npz") or cut < 33
            )


def test_replacement_keeps_mode_and_symlink(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(TEXT)
    real = tmp_path / "deep" / "real.onnx"
    specc.compile(tmp_path / "m.specc", real, init=0, weights_as="copy")
    real.chmod(0o640)
    (tmp_path / "m.onnx").symlink_to(real)
    old = {p.name for p in real.parent.iterdir()}
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=1, weights_as="copy")
    assert (tmp_path / "m.onnx").is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == 0o640
    new = {p.name for p in real.parent.iterdir()}
    assert len(new) == 2, "the former weights are gone"
    assert new & old == {"real.onnx"}
    wanted = specc.load(real).run(x=np.ones((1, 2, 4), np.float32))
    assert np.array_equal(
        specc.load(tmp_path / "m.onnx").run(x=np.ones((1, 2, 4), np.float32))["y"], wanted["y"]
    )


def test_superseded_weights_that_are_kept(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(TEXT)
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=0, weights_as="copy")
    (old,) = tmp_path.glob("m-*.data")
    strange = tmp_path / "m-0123456789abcdef.data"
    strange.write_bytes(b"not what its name says")
    (tmp_path / "copy.onnx").write_bytes((tmp_path / "m.onnx").read_bytes())
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=1, weights_as="copy")
    assert old.exists()
    assert strange.exists()
    (tmp_path / "copy.onnx").unlink()
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=0, weights_as="copy")
    specc.compile(tmp_path / "m.specc", tmp_path / "m.onnx", init=1, weights_as="inline")
    assert not old.exists()
    assert strange.exists()


@pytest.mark.parametrize("name", sample_sweep(["other.onnx", "M.ONNX", "m.onnx.bak", "m", "a\nb"]))
@pytest.mark.parametrize("package", [False, True])
def test_weights_referenced_by_other_models_are_kept(
    name: str, package: bool, tmp_path: Path
) -> None:
    """The other model may have an uppercase suffix or be a renamed copy, next to a single model or
    in a package directory."""
    (tmp_path / "m.specc").write_text(TEXT)
    directory = tmp_path / "p"

    def compile_with_seed(seed: int) -> None:
        output, parts = (directory, ["score"]) if package else (directory / "m.onnx", [])
        specc.compile(tmp_path / "m.specc", output, init=seed, graphs=parts, weights_as="copy")

    compile_with_seed(0)
    (model,) = directory.glob("*.onnx")
    (old,) = directory.glob("*.data")
    (directory / name).write_bytes(model.read_bytes())
    compile_with_seed(1)
    assert old.exists()
    (directory / name).unlink()
    compile_with_seed(0)
    compile_with_seed(1)
    assert not old.exists()


def test_formatting_follows_a_link_and_keeps_the_mode(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(TEXT.replace("  return", "     return"))
    (tmp_path / "m.specc").chmod(0o600)
    (tmp_path / "link.specc").symlink_to("m.specc")
    assert cli.main(["fmt", str(tmp_path / "link.specc")]) == 0
    assert (tmp_path / "link.specc").is_symlink()
    assert (tmp_path / "m.specc").read_text() == TEXT
    assert stat.S_IMODE((tmp_path / "m.specc").stat().st_mode) == 0o600


def test_a_package_replaces_its_own_files_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "m.specc").write_text(TEXT)

    def compile_with_seed(**options: bool) -> str:
        return get_outcome(
            lambda: specc.compile(
                tmp_path / "m.specc", tmp_path / "a" / "p", init=0, graphs=["score"], **options
            )  # type: ignore[arg-type]
        )

    assert compile_with_seed() == YES
    directory = tmp_path / "a" / "p"
    for name, content in (("specc.json", b'{"mine": 1}'), ("score.onnx", b"mine")):
        (directory / name).write_bytes(content)
        assert compile_with_seed() == "E0833"
        assert (directory / name).read_bytes() == content
        assert compile_with_seed(force=True) == YES
        (directory / name).unlink()
        (directory / name).symlink_to(tmp_path / "m.specc")
        assert compile_with_seed(force=True) == "E0811"
        assert (tmp_path / "m.specc").read_text() == TEXT
        (directory / name).unlink()
        assert compile_with_seed() == YES
