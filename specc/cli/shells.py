"""Scripts for bash, zsh and fish, made of the options that commands declare.

They are short because they hold no more than words: which options a command has, which
values an option takes, and where to ask specc itself (`specc _complete`), for names of
specs and keys of a config.
"""

from argparse import Action, ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

ASKED = {"spec": "specs", "code": "codes", "set": "set"}
"""What specc is asked for, by the name of an option or argument."""


@dataclass(frozen=True, slots=True)
class Choice:
    """What may stand at a place: these `words`, or what `specc _complete` says; files too
    where `files`.
    """

    words: tuple[str, ...] = ()
    asked: str = ""
    files: bool = True


@dataclass(frozen=True, slots=True)
class Taken:
    """What a command takes: options with what each is and what may follow, or None for one
    that stands alone; and what its arguments may be.
    """

    about: str
    options: Mapping[str, tuple[str, Choice | None]]
    arguments: Choice


def _any_of(arguments: Sequence[Choice]) -> Choice:
    """What any of some places takes, as one after another may be filled."""
    words = tuple(word for each in arguments for word in each.words)
    asked = next((each.asked for each in arguments if each.asked), "")
    return Choice(words, asked, files=any(each.files for each in arguments))


def taken(commands: Mapping[str, ArgumentParser]) -> dict[str, Taken]:
    """What each command takes."""
    found = {}
    for name, parser in commands.items():
        options: dict[str, tuple[str, Choice | None]] = {}
        arguments: list[Choice] = []
        for action in parser._actions:
            said = plain(action.help or "")
            if not action.option_strings:
                arguments.append(_choice(action))
            for option in action.option_strings:
                options[option] = said, None if action.nargs == 0 else _choice(action)
        found[name] = Taken(
            plain(parser.description or ""), options, _any_of(arguments)
        )
    return found


def _choice(action: Action) -> Choice:
    words = tuple(str(word) for word in action.choices or ())
    asked = ASKED.get(action.dest, "")
    return Choice(words, asked, files=not words and asked in ("", "specs"))


def plain(text: str) -> str:
    """A help in one line, without what a shell would read."""
    line = " ".join(text.replace("%%", "%").split())
    return "".join(c for c in line if c not in "'\"`$\\[]:{}")[:70].strip()


def script(shell: str, commands: Mapping[str, Taken]) -> str:
    """The script for one of the three shells."""
    return {"bash": bash, "zsh": zsh, "fish": fish}[shell](commands)


ASKING = "$(specc _complete {} 2>/dev/null)"
SPEC_OF = {"bash": '"${COMP_WORDS[2]}"', "zsh": '"${words[3]}"'}


def bash(commands: Mapping[str, Taken]) -> str:
    """A function that fills COMPREPLY."""
    first = " ".join([*commands, "--help", "--version"])
    lines = [
        "# source <(specc completion bash)",
        "_specc() {",
        "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}",
        "  local words='' files=''",
        "  COMPREPLY=()",
        "  if (( COMP_CWORD == 1 )); then",
        f"    COMPREPLY=($(compgen -W '{first}' -- \"$word\"))",
        "    return",
        "  fi",
        "  # an `=` divides words: what is asked for stands in front of it",
        "  [[ $before == '=' || $word == '=' ]] && { compopt -o default; return; }",
        '  case "${COMP_WORDS[1]}" in',
    ]
    for name, takes in commands.items():
        lines += [f"    {name})", '      case "$before" in']
        for option, (_, choice) in takes.options.items():
            if choice is not None:
                lines.append(f"        {option}) {_bash_words(choice)} ;;")
        lines += [
            "        *)",
            f"          if [[ $word == -* ]]; then words='{' '.join(takes.options)}'",
            f"          else {_bash_words(takes.arguments)}; fi ;;",
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


def _bash_words(choice: Choice) -> str:
    words = f"words='{' '.join(choice.words)}'"
    if choice.asked:
        words = f'words="{ASKING.format(_asked(choice, "bash"))}"'
    return words + ("; files=1" if choice.files else "")


def _asked(choice: Choice, shell: str) -> str:
    """What is asked of specc; keys of a config are asked of the spec that was named."""
    of = f" {SPEC_OF[shell]}" if choice.asked == "set" else ""
    return f"{choice.asked}{of}"


def zsh(commands: Mapping[str, Taken]) -> str:
    """A function for zsh's own description of arguments, `_arguments`."""
    lines = [
        "#compdef specc",
        "# specc completion zsh > a folder of $fpath, as _specc",
        "_specc_asked() {",
        "  local -a found",
        '  found=(${(f)"$(specc _complete "$@" 2>/dev/null)"})',
        "  if [[ $1 == set ]]; then compadd -S '' -a found; else compadd -a found; fi",
        "}",
        "_specc() {",
        "  if (( CURRENT == 2 )); then",
        "    local -a commands=(",
        *(f"      '{name}:{takes.about}'" for name, takes in commands.items()),
        "    )",
        "    _describe command commands",
        "    return",
        "  fi",
        '  local spec="${words[3]}"',
        '  local command="${words[2]}"',
        "  shift words; (( CURRENT-- ))",
        '  case "$command" in',
    ]
    for name, takes in commands.items():
        lines += [f"    {name}) _arguments \\"]
        for option, (about, choice) in takes.options.items():
            value = "" if choice is None else f":value:{_zsh_words(choice)}"
            lines.append(f"      '*{option}[{about}]{value}' \\")
        lines.append(f"      '*:argument:{_zsh_words(takes.arguments)}' ;;")
    lines += [
        "  esac",
        "}",
        '[[ ${funcstack[1]} == _specc ]] && _specc "$@" || compdef _specc specc',
    ]
    return "\n".join(lines) + "\n"


def _zsh_words(choice: Choice) -> str:
    if choice.words:
        return f"({' '.join(choice.words)})"
    if not choice.asked:
        return "_files"
    of = ' "$spec"' if choice.asked == "set" else ""
    asked = f"_specc_asked {choice.asked}{of}"
    return f"{{_files; {asked}}}" if choice.files else f"{{{asked}}}"


def fish(commands: Mapping[str, Taken]) -> str:
    """A line for each option."""
    lines = [
        "# specc completion fish > ~/.config/fish/completions/specc.fish",
        "function __specc_words",
        "    commandline -opc",
        "end",
        "complete -c specc -f",
        "complete -c specc -n __fish_use_subcommand -l help -d 'what it does'",
        "complete -c specc -n __fish_use_subcommand -l version -d 'its version'",
    ]
    for name, takes in commands.items():
        lines.append(
            f"complete -c specc -n __fish_use_subcommand -a {name} -d '{takes.about}'"
        )
        here = f"complete -c specc -n '__fish_seen_subcommand_from {name}'"
        lines += _fish_arguments(here, takes.arguments)
        for option, (about, choice) in takes.options.items():
            dashes = "-l" if option.startswith("--") else "-s"
            value = "" if choice is None else f" -r{_fish_words(choice)}"
            lines.append(f"{here} {dashes} {option.lstrip('-')} -d '{about}'{value}")
    return "\n".join(lines) + "\n"


def _fish_arguments(here: str, choice: Choice) -> Iterator[str]:
    if choice.files:
        yield f"{here} -F"
    if choice.words or choice.asked:
        yield f"{here}{_fish_words(choice)}"


def _fish_words(choice: Choice) -> str:
    if choice.words:
        return f" -a '{' '.join(choice.words)}'"
    if not choice.asked:
        return " -F"
    of = " (__specc_words)[3]" if choice.asked == "set" else ""
    return f" -a '(specc _complete {choice.asked}{of} 2>/dev/null)'"
