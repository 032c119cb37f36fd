"""Short specs with exponential cost: each construct that multiplies, nested 30 levels deep, and
mixtures of them.
"""

from collections.abc import Callable, Iterator
from random import Random

LEVELS = 30
INPUT = "x: float[batch, n, 8]"


def build_spec(before: str = "", body: str = "") -> str:
    """Return a spec whose graph returns its input, after the statements of `body`."""
    return (
        f"specc 1\nmodel m\n{before}\ndims batch, n\n"
        f"graph g({INPUT}) -> (y: float[batch, n, 8]) {{\n{body}\nreturn x\n}}\n"
    )


def chain_lines(first: str, step: Callable[[int], str], levels: int = LEVELS) -> str:
    """Return lines 0 to `levels`, each built from the previous one."""
    return "\n".join([first, *(step(n) for n in range(1, levels + 1))])


def chain_definitions(kind: str, first: str, step: str, parameters: str = "") -> str:
    """Return `mask m1 = m0 & m0`, …; `#` in `step` is the previous level, and arguments are passed
    on.
    """
    static_inputs = f"({parameters})" if parameters else ""
    typed = f"({parameters}: int)" if parameters else ""
    return chain_lines(
        f"{kind} m0{typed} = {first}",
        lambda n: f"{kind} m{n}{typed} = {step.replace('#', f'm{n - 1}{static_inputs}')}",
    )


def chain_lists(first: str, step: str) -> str:
    """Return `a1 = [a0, a0]`, …."""
    return chain_lines(f"a0 = {first}", lambda n: f"a{n} = {step.replace('#', f'a{n - 1}')}")


def nest_loops(head: str, inside: str, levels: int) -> str:
    """Return nested loops; `#` in the head is the level."""
    heads = [head.replace("#", str(n)) + " {" for n in range(levels)]
    return " ".join([*heads, inside, *["}"] * levels])


MASK_USE = f"y = attend(x, x, x, mask=m{LEVELS})"


def list_mask_bombs() -> Iterator[tuple[str, str]]:
    """Return masks, which expand at their use. Scores and biases cannot contain others of their
    kind.
    """
    masks = (
        "# & #",
        "# | #",
        "not (# & #)",
        "(# & causal) | (# & not causal)",
        "# if 1 == 1 else #",
        "not # | #",
    )
    for step in masks:
        yield f"mask {step}", build_spec(chain_definitions("mask", "causal", step), MASK_USE)
    yield "mask of rows", build_spec(chain_definitions("mask", "j <= i", "# & #"), MASK_USE)
    yield (
        "mask of numbers",
        build_spec(
            chain_definitions("mask", "i - j < c", "# & #", "c"),
            MASK_USE.replace(f"m{LEVELS}", f"m{LEVELS}(c=3)"),
        ),
    )


def list_value_bombs() -> Iterator[tuple[str, str]]:
    """Return lists, strings, records and numbers."""
    yield "lists of lists", build_spec(body=chain_lists("[1]", "[#, #]"))
    yield "lists joined", build_spec(body=chain_lists("[1]", "# + #"))
    yield "lists of lists joined", build_spec(body=chain_lists("[[1]]", "[# + #]"))
    yield "records", build_spec(body=chain_lists("{v = 1}", "{v = #, w = #}"))
    yield "texts", build_spec(body=chain_lists('"ab"', '"{#}{#}"'))
    yield "powers", build_spec(body=chain_lists("2", "# ** 60"))
    yield "floats", build_spec(body=chain_lists("2.0", "# ** 60"))
    twins = (
        chain_lists("[1]", "[#, #]")
        + "\n"
        + chain_lists("[1]", "[#, #]").replace("a", "b")
        + f"\nrequire a{LEVELS} == b{LEVELS}"
    )
    yield "lists compared", build_spec(body=twins)
    yield (
        "comprehensions",
        build_spec(body="a = [[[[1 for i in 300] for j in 300] for k in 300] for l in 300]"),
    )
    yield (
        "empty comprehensions",
        build_spec(body="a = [[[[] for j in 4000] == [] for k in 4000] == [] for l in 4000]"),
    )
    yield (
        "config",
        build_spec(
            "config {\n"
            + chain_lines("a0: list[int] = [1]", lambda n: f"a{n}: list[int] = a{n - 1} + a{n - 1}")
            + "\n}"
        ),
    )


def list_loop_bombs() -> Iterator[tuple[str, str]]:
    """Return blocks and loops."""
    block = f"block b%d({INPUT}) -> float[batch, n, 8] {{ return %s }}"
    for name, step in (
        ("blocks", "b%d(b%d(x))"),
        ("blocks side by side", "b%d(x) + b%d(x)"),
        ("blocks chosen", "b%d(x) if 1 == 1 else b%d(x)"),
    ):
        calls = chain_lines(block % (0, "x"), lambda n, s=step: block % (n, s % (n - 1, n - 1)))
        yield name, build_spec(calls, f"y = b{LEVELS}(x)")
    yield "empty loops", build_spec(body=nest_loops("repeat i# in 4096", "", 3))
    yield (
        "loops over lists",
        build_spec(body="a = [i for i in 4000]\n" + nest_loops("repeat i# in a", "", 3)),
    )
    yield (
        "loops of conditions",
        build_spec(body=nest_loops("repeat i# in 4096", "when i0 == i1 { } else { }", 3)),
    )
    yield "loops of names", build_spec(body=nest_loops("repeat i# in 4096", "z = x", 3))
    yield (
        "loops of requirements",
        build_spec(body=nest_loops("repeat i# in 4096", "require i0 + i1 >= 0", 3)),
    )
    yield (
        "loops of nothing",
        build_spec(body=nest_loops("repeat i# in 0", nest_loops("repeat k# in 4096", "", 3), 1)),
    )
    scanned = nest_loops("repeat i# in 4096", "scan r in x along n carry s { s = s + r }", 2)
    yield "loops of scans", build_spec(body=f"s = x[:, 0]\n{scanned}")


def sample_mixed_bombs(count: int, seed: int) -> Iterator[tuple[str, str]]:
    """Return definitions and loops in random order, each used several times by the next."""
    random = Random(seed)
    for number in range(count):
        steps = [
            random.choice(
                ("# & #", "# | #", "not (# & #)", "# & causal & #", "(# if 2 > 1 else #) | #")
            )
            for _ in range(LEVELS)
        ]
        masks = "\n".join(
            [
                "mask m0 = causal",
                *(f"mask m{n + 1} = {s.replace('#', f'm{n}')}" for n, s in enumerate(steps)),
            ]
        )
        used = f"y = attend(x, x, x, mask=m{random.randrange(LEVELS)})"
        yield (
            f"mixed {number}",
            build_spec(masks, nest_loops("repeat i# in 4096", used, random.randint(1, 3))),
        )


def list_all_bombs() -> dict[str, str]:
    """Return every construct once."""
    return {**dict(list_mask_bombs()), **dict(list_value_bombs()), **dict(list_loop_bombs())}


CHECK_PROGRAM = """
import resource, time
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc.frontend import elaboration_context, elaboration_limits_and_errors
from specc.diagnostics.diagnostic import SpeccError
import tempfile, pathlib
if given["steps"]:
    elaboration_limits_and_errors.MAX_STEPS = given["steps"]
    elaboration_context.MAX_GRAPH_NODES = 2 * given["steps"]
result = {}
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder, "bomb.specc")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, text in given["bombs"].items():
        path.write_text(text)
        start = time.process_time()
        try:
            check_spec(open_spec(str(path)))
            code = ""
        except SpeccError as failed:
            code = failed.diagnostics[0].code
        result[name] = code, round(time.process_time() - start, 2)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
result = {"found": result, "megabytes": grown}
"""
"""Checks each of `bombs`, with a budget of `steps` if that is not 0: code and seconds of each, and
the memory growth in MB.
"""
