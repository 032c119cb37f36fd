"""Print the script by which bash, zsh or fish completes commands, options and names."""

from argparse import ArgumentParser, Namespace

from specc.cli.shells import script, taken

SHELLS = ("bash", "zsh", "fish")


def arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.epilog = "How to install it stands in docs/command-line.md."
    parser.add_argument("shell", choices=SHELLS, help="the shell that is to complete")


def run(given: Namespace) -> int:
    """Print the script, made of what the commands declare now."""
    # whole_parsers loads every command, of which this is one
    from specc.cli.main import whole_parsers

    print(script(given.shell, taken(whole_parsers())), end="")
    return 0
