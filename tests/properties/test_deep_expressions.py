"""Long and deep expressions pass through every command if they are within the limits of a text."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from specc.cli.main import main


def spec(before: str = "", body: str = "return x", require: str = "") -> str:
    inputs = "x: float[batch, n, 8], flag: bool[batch, n, 8]"
    return (
        f"specc 1\nmodel m\n{before}\ndims batch, n\n{require}\n"
        f"graph g({inputs}) -> (y: float[batch, n, 8]) {{\n{body}\n}}\n"
    )


def make_long_expressions(tokens: int) -> Iterator[tuple[str, str]]:
    """Return expressions of about this many tokens, for each operator."""

    def chain(op: str, term: str) -> str:
        width = {"true": 2, "causal": 2, "flag": 2, "x": 2, "1": 2, "j <= i": 4, "window(3)": 5}[
            term
        ]
        return f" {op} ".join([term] * ((tokens - 20) // width))

    for op in ("+", "-", "*", "/", "//", "%"):
        yield f"numbers {op}", spec(require=f"require {chain(op, '1')} != 7")
    yield "numbers <=", spec(require=f"require {chain('<=', '1')}")
    for op in ("&", "|"):
        yield f"truths {op}", spec(require=f"require {chain(op, 'true')}")
        yield (f"tensors {op}", spec(body=f"return x + cast({chain(op, 'flag')}, to=float)"))
        for mask in ("causal", "window(3)", "j <= i"):
            yield (
                f"{mask} {op}",
                spec(f"mask m = {chain(op, mask)}", "return attend(x, x, x, mask=m)"),
            )
    for op in ("+", "-"):
        yield f"tensors {op}", spec(body=f"return {chain(op, 'x')}")


def make_deep_expressions() -> Iterator[tuple[str, str]]:
    """Return expressions nested to the limit."""
    yield "signs", spec(body=f"return {'- ' * 254}x")
    yield "not", spec(require=f"require {'not ' * 254}true")
    yield "powers", spec(require=f"require {' ** '.join(['1'] * 250)} == 1")
    yield "brackets", spec(body=f"return {'(' * 60}x{' + x)' * 60}")
    yield "calls", spec(body=f"return {'relu(' * 62}x{')' * 62}")
    yield "choices", spec(require=f"require {'true if false else ' * 200}true")
    yield "indices", spec(body=f"return x{'[:]' * 200}")


def run_commands(text: str, directory: Path) -> None:
    """Run check, format, convert in both directions, compile and show; each must exit with 0."""
    path, made = directory / "a.specc", directory / "a.yaml"
    path.write_text(text)
    for words in (
        ["check", path], ["convert", path, "-o", made], ["check", made], ["convert", made, "-o", directory / "b.specc"],
        ["fmt", path], ["check", directory / "b.specc"], ["compile", path, "--init", "0", "-o", directory / "m.onnx"],
        ["show", directory / "m.onnx"],
    ):  # fmt: skip
        assert main([str(w) for w in words]) == 0, words[0]


SOME = ("truths &", "causal |")


@pytest.mark.parametrize(
    ("name", "text"),
    [(n, t) for n, t in make_long_expressions(300) if n in SOME],
    ids=lambda v: v[:12],
)
def test_every_command_accepts_long_expressions(name: str, text: str, tmp_path: Path) -> None:
    run_commands(text, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "text"),
    [*make_long_expressions(9_900), *make_deep_expressions()],
    ids=lambda v: v[:12],
)
def test_every_command_accepts_expressions_at_the_depth_limit(
    name: str, text: str, tmp_path: Path
) -> None:
    run_commands(text, tmp_path)
