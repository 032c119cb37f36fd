"""Compare two architectures: specs, checkpoint directories, compiled models and packages."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from specc.cli.options import (
    add_option_groups,
    is_compiled,
    print_shadow_note,
    read_compiled_manifest,
)
from specc.cli.terminal import print_json_result
from specc.diagnostics.diagnostic import raise_error
from specc.driver.option_kinds import SPEC_OPTIONS
from specc.driver.spec_loader import elaborate_spec, open_spec
from specc.io.safe_read import escape_text
from specc.visualize.architecture_diff import (
    ArchitectureDifference,
    DiffSide,
    diff_architectures,
    format_difference,
)

OPTIONS = {
    "set": "set a config value of B, which is a spec",
    "config": "read config values of B from a config.json",
    "graph": "select a graph",
}
DIFFERENCE_STATUS = 4
"""The exit status if there is a difference, as for `verify`."""


def add_diff_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc diff`."""
    parser.epilog = "Exit status: 0 equal, 4 different."
    what = "a spec, a checkpoint directory, a compiled model or a package"
    parser.add_argument("a", metavar="A", help=what)
    parser.add_argument("b", metavar="B", help="the other one")
    options = {name: SPEC_OPTIONS[name]._replace(help=help) for name, help in OPTIONS.items()}
    add_option_groups(parser, input=options)


def run_diff(args: Namespace) -> int:
    """Print the differences, one per line. Return 0 if there are none, else 4."""
    a = _load_side(args.a, args.graph)
    b = _load_side(args.b, args.graph, args.config, args.set)
    difference = diff_architectures(a, b)
    if not print_json_result("diff", _difference_as_json(a, b, difference)):
        print("\n".join(map(escape_text, format_difference(a, b, difference))))
    return 0 if difference.same else DIFFERENCE_STATUS


def _difference_as_json(
    a: DiffSide, b: DiffSide, difference: ArchitectureDifference
) -> dict[str, object]:
    """Return the difference as JSON values."""
    return {
        "a": a.name,
        "b": b.name,
        "same": difference.same,
        "reason": difference.reason,
        "changes": [*map(vars, difference.changes)],
    }


def _load_side(path: str, graph: str, config: str = "", sets: list[str] | None = None) -> DiffSide:
    """Return one side. Raise E0956 for a standalone generator, E0957 for config values."""
    name = Path(path).name or path
    if is_compiled(path):
        if config or sets:
            raise_error(
                "E0957",
                f"`{escape_text(path)}` is compiled with fixed config values",
                helps=["leave out --set and --config, or compare with its spec"],
            )
        manifest = read_compiled_manifest(path, graph)
        if manifest.decodes is not None:
            raise_error(
                "E0956",
                f"`{escape_text(path)}` is a standalone generator and has no graph to compare",
                helps=["compare its spec, or a package of it, compiled with `--graphs all`"],
            )
        return DiffSide(name=name, graph=manifest.graph, config=manifest.config)
    print_shadow_note(path)
    model = elaborate_spec(open_spec(path, config=config, sets=sets or []), graph)
    return DiffSide(name=name, graph=model.graph, config=model.config)
