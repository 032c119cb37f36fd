"""Print the shell completion script for bash, zsh or fish."""

from argparse import Action, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from specc.diagnostics.diagnostic import SpeccError
from specc.driver.spec_loader import open_spec
from specc.library.spec_file_lookup import find_builtin_specs, find_error_doc_pages

COMPLETED_KINDS = {"spec": "specs", "code": "codes", "set": "set"}
"""Kinds of candidates that `specc _complete` prints, by the `dest` of an option or argument."""


@dataclass(frozen=True, slots=True)
class CompletionCandidates:
    """Candidates for completion: the fixed `values`, the output of `specc _complete` for
    `dynamic_kind`, and file names.
    """

    values: tuple[str, ...] = ()
    dynamic_kind: str = ""
    includes_files: bool = True


@dataclass(frozen=True, slots=True)
class CommandCompletion:
    """Completions for a command: its options, with their help and their candidates (None for a
    flag), and the candidates for its positional arguments.
    """

    summary: str
    options: Mapping[str, tuple[str, CompletionCandidates | None]]
    arguments: CompletionCandidates


def _merge_choices(choices: Sequence[CompletionCandidates]) -> CompletionCandidates:
    """Merge the completion candidates of several positional arguments into one object."""
    values = tuple(value for choice in choices for value in choice.values)
    dynamic_kind = next((choice.dynamic_kind for choice in choices if choice.dynamic_kind), "")
    return CompletionCandidates(
        values, dynamic_kind, includes_files=any(choice.includes_files for choice in choices)
    )


def collect_completions(commands: Mapping[str, ArgumentParser]) -> dict[str, CommandCompletion]:
    """Return the completions of each command, keyed by command name."""
    completions = {}
    for name, parser in commands.items():
        options = {
            option: (
                format_one_line_help(action.help or ""),
                None if action.nargs == 0 else _build_choice(action),
            )
            for action in parser._actions
            for option in action.option_strings
        }
        arguments = [
            _build_choice(action) for action in parser._actions if not action.option_strings
        ]
        completions[name] = CommandCompletion(
            format_one_line_help(parser.description or ""), options, _merge_choices(arguments)
        )
    return completions


def _build_choice(action: Action) -> CompletionCandidates:
    values = tuple(map(str, action.choices or ()))
    dynamic_kind = COMPLETED_KINDS.get(action.dest, "")
    return CompletionCandidates(
        values, dynamic_kind, includes_files=not values and dynamic_kind in ("", "specs")
    )


def format_one_line_help(text: str) -> str:
    """Return a help text as one line without shell metacharacters."""
    line = " ".join(text.replace("%%", "%").split())
    return "".join(c for c in line if c not in "'\"`$\\[]:{}")[:70].strip()


def render_bash_completion(commands: Mapping[str, CommandCompletion]) -> str:
    """Return a bash completion function, which sets COMPREPLY."""
    first_words = " ".join([*commands, "--help", "--version"])
    lines = [
        "# source <(specc completion bash)",
        "_specc() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
        "  local words='' files=''",
        "  COMPREPLY=()",
        "  if (( COMP_CWORD == 1 )); then",
        f"    COMPREPLY=($(compgen -W '{first_words}' -- \"$word\"))",
        "    return",
        "  fi",
        "  # `=` splits words: the option is before it",
        "  [[ $before == '=' || $word == '=' ]] && { compopt -o default; return; }",
        '  case "${COMP_WORDS[1]}" in',
    ]
    for name, completion in commands.items():
        lines += [f"    {name})", '      case "$before" in']
        for option, (_, choice) in completion.options.items():
            if choice is not None:
                lines.append(f"        {option}) {_format_bash_words(choice)} ;;")
        lines += [
            "        *)",
            f"          if [[ $word == -* ]]; then words='{' '.join(completion.options)}'",
            f"          else {_format_bash_words(completion.arguments)}; fi ;;",
            "      esac ;;",
        ]
    lines += [
        "  esac",
        '  COMPREPLY=($(compgen -W "$words" -- "$word"))',
        "  [[ ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null",
        "  if [[ -n $files ]]; then",
        "    compopt -o filenames 2>/dev/null",
        '    while IFS= read -r file; do COMPREPLY+=("$file"); done < <(compgen -f -- "$word")',
        "  fi",
        "  return 0",
        "}",
        "complete -F _specc specc",
    ]
    return "\n".join(lines) + "\n"


def _format_bash_words(choice: CompletionCandidates) -> str:
    words = f"words='{' '.join(choice.values)}'"
    if choice.dynamic_kind:
        # complete the config keys of the spec that the command line names
        spec_argument = ' "${COMP_WORDS[2]}"' if choice.dynamic_kind == "set" else ""
        words = f'words="$(specc _complete {choice.dynamic_kind}{spec_argument} 2>/dev/null)"'
    return words + ("; files=1" if choice.includes_files else "")


def render_zsh_completion(commands: Mapping[str, CommandCompletion]) -> str:
    """Return a zsh completion function, which calls `_arguments`."""
    lines = [
        "#compdef specc",
        "# specc completion zsh > _specc, in a directory of $fpath",
        "_specc_candidates() {",
        "  local -a found",
        '  found=(${(f)"$(specc _complete "$@" 2>/dev/null)"})',
        "  if [[ $1 == set ]]; then compadd -S '' -a found; else compadd -a found; fi",
        "}",
        "_specc() {",
        "  if (( CURRENT == 2 )); then",
        "    local -a commands=(",
        *(f"      '{name}:{completion.summary}'" for name, completion in commands.items()),
        "    )",
        "    _describe command commands",
        "    return",
        "  fi",
        '  local spec="${words[3]}"',
        '  local command="${words[2]}"',
        "  shift words; (( CURRENT-- ))",
        '  case "$command" in',
    ]
    for name, completion in commands.items():
        lines += [f"    {name}) _arguments \\"]
        for option, (summary, choice) in completion.options.items():
            value = "" if choice is None else f":value:{_format_zsh_words(choice)}"
            lines.append(f"      '*{option}[{summary}]{value}' \\")
        lines.append(f"      '*:argument:{_format_zsh_words(completion.arguments)}' ;;")
    lines += [
        "  esac",
        "}",
        '[[ ${funcstack[1]} == _specc ]] && _specc "$@" || compdef _specc specc',
    ]
    return "\n".join(lines) + "\n"


def _format_zsh_words(choice: CompletionCandidates) -> str:
    if choice.values:
        return f"({' '.join(choice.values)})"
    if not choice.dynamic_kind:
        return "_files"
    spec_argument = ' "$spec"' if choice.dynamic_kind == "set" else ""
    command = f"_specc_candidates {choice.dynamic_kind}{spec_argument}"
    return f"{{_files; {command}}}" if choice.includes_files else f"{{{command}}}"


def render_fish_completion(commands: Mapping[str, CommandCompletion]) -> str:
    """Return a fish completion script with one line per option."""
    lines = [
        "# specc completion fish > ~/.config/fish/completions/specc.fish",
        "function __specc_words",
        "    commandline -opc",
        "end",
        "complete -c specc -f",
        "complete -c specc -n __fish_use_subcommand -l help -d 'show this help message and exit'",
        "complete -c specc -n __fish_use_subcommand -l version -d 'show the version and exit'",
    ]
    for name, completion in commands.items():
        lines.append(
            f"complete -c specc -n __fish_use_subcommand -a {name} -d '{completion.summary}'"
        )
        prefix = f"complete -c specc -n '__fish_seen_subcommand_from {name}'"
        lines += _format_fish_arguments(prefix, completion.arguments)
        for option, (summary, choice) in completion.options.items():
            dashes = "-l" if option.startswith("--") else "-s"
            value = "" if choice is None else f" -r{_format_fish_words(choice)}"
            lines.append(f"{prefix} {dashes} {option.lstrip('-')} -d '{summary}'{value}")
    return "\n".join(lines) + "\n"


def _format_fish_arguments(prefix: str, choice: CompletionCandidates) -> Iterator[str]:
    if choice.includes_files:
        yield f"{prefix} -F"
    if choice.values or choice.dynamic_kind:
        yield f"{prefix}{_format_fish_words(choice)}"


def _format_fish_words(choice: CompletionCandidates) -> str:
    if choice.values:
        return f" -a '{' '.join(choice.values)}'"
    if not choice.dynamic_kind:
        return " -F"
    spec_argument = " (__specc_words)[3]" if choice.dynamic_kind == "set" else ""
    return f" -a '(specc _complete {choice.dynamic_kind}{spec_argument} 2>/dev/null)'"


SCRIPT_RENDERERS = {
    "bash": render_bash_completion,
    "zsh": render_zsh_completion,
    "fish": render_fish_completion,
}


def render_completion_script(shell: str, commands: Mapping[str, CommandCompletion]) -> str:
    """Return the completion script of the shell `shell`."""
    return SCRIPT_RENDERERS[shell](commands)


def add_complete_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc _complete`."""
    parser.add_argument("kind", choices=[*COMPLETED_KINDS.values()])
    parser.add_argument("spec", nargs="?", default="", metavar="SPEC")


def execute_complete_command(args: Namespace) -> int:
    """Print the completion candidates. Print nothing if the spec is missing, because shells do not
    display errors of completion scripts.
    """
    for candidate in _list_candidates(args.kind, args.spec):
        print(candidate)
    return 0


def _list_candidates(kind: str, spec: str) -> list[str]:
    if kind == "specs":
        return sorted(find_builtin_specs())
    if kind == "codes":
        return sorted(find_error_doc_pages())
    try:
        fields = open_spec(spec).program.map_fields_by_path() if spec else {}
    except SpeccError:
        return []
    return [f"{name}=" for name in fields]


def add_completion_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `specc completion`."""
    parser.epilog = "docs/command-line.md describes the installation."
    parser.add_argument("shell", choices=[*SCRIPT_RENDERERS], help="shell that runs the script")


def execute_completion_command(args: Namespace) -> int:
    """Print a completion script that is generated from the options of all commands."""
    # import lazily to avoid a cyclic import: `build_command_parsers` imports this module
    from specc.cli.main import build_command_parsers

    print(
        render_completion_script(args.shell, collect_completions(build_command_parsers())), end=""
    )
    return 0
