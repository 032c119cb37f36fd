"""Read stdin, and print diagnostics, notes, JSON results and progress."""

import itertools
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from specc.diagnostics.diagnostic import (
    Diagnostic,
    Source,
    merge_duplicate_diagnostics,
    raise_error,
)
from specc.diagnostics.machine_formats_and_exit_codes import format_json_lines, format_sarif
from specc.diagnostics.render import render_diagnostics, render_short_diagnostic
from specc.io.atomic_write import WRITE_PROGRESS, write_file_atomically
from specc.io.json_io import replace_non_finite_numbers
from specc.io.output_paths import OutputFileType, resolve_output_path
from specc.version import __version__

STDIN_NAME = "-"
"""The command-line path that represents stdin."""
MAX_STDIN_BYTES = 2**20
"""Maximum size in bytes of a spec read from stdin, equal to the limit for spec files."""


def read_standard_input(max_bytes: int) -> bytes:
    """Read stdin. Raise E0802 if stdin is unreadable, and E0904 if it exceeds `max_bytes` bytes."""
    stream = sys.stdin
    if stream is None or stream.closed:
        raise_error("E0802", "cannot read stdin: it is closed", helps=["pass text, or @FILE"])
    try:
        data = stream.buffer.read(max_bytes + 1)
    except OSError as error:
        raise_error("E0802", f"cannot read stdin: {str(error.strerror).lower()}")
    if len(data) > max_bytes:
        helps = ["pass less input, or split it into several runs"]
        raise_error("E0904", f"stdin is larger than {max_bytes} bytes", helps=helps)
    return data


def read_spec_from_stdin() -> Source:
    """Read a spec in either syntax from stdin. Errors are reported at `<standard input>:line`."""
    data = read_standard_input(MAX_STDIN_BYTES)
    try:
        return Source("<standard input>", data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise_error("E0112", "stdin is not UTF-8 text")


MACHINE_FORMATS = ("json", "sarif")
"""Machine-readable formats: stdout contains only results and diagnostics."""


@dataclass(frozen=True, slots=True)
class OutputSettings:
    """The name of the running command and its output options, `--format` and `--quiet`."""

    format: str = "full"
    is_quiet: bool = False
    command: str = ""

    @property
    def is_machine_readable(self) -> bool:
        """True if stdout contains only machine-readable output."""
        return self.format in MACHINE_FORMATS

    @property
    def is_text_output_enabled(self) -> bool:
        """True if the command prints notes, results and progress."""
        return not (self.is_quiet or self.is_machine_readable)


OUTPUT_SETTINGS: ContextVar[OutputSettings] = ContextVar("output_settings")


def get_output_settings() -> OutputSettings:
    """Return the output settings of the current command."""
    return OUTPUT_SETTINGS.get(OutputSettings())


def print_diagnostics(diagnostics: Sequence[Diagnostic], format: str, color: str) -> None:
    """Print diagnostics to stderr in human-readable form, or to stdout as JSON or SARIF. An empty
    list is printed only as JSON or SARIF.

    Identical diagnostics are merged. Code in help texts is translated to the syntax of the file.
    """
    if get_output_settings().is_quiet:
        diagnostics = [d for d in diagnostics if d.severity == "error"]
    if diagnostics:
        # import lazily, because commands on compiled models do not need the parser
        from specc.syntax.parse import convert_help_snippets_to_yaml

        diagnostics = convert_help_snippets_to_yaml(merge_duplicate_diagnostics(diagnostics))
    match format:
        case "json":
            sys.stdout.write(format_json_lines(diagnostics))
        case "sarif":
            sys.stdout.write(format_sarif(diagnostics, __version__).rstrip("\n") + "\n")
        case "short":
            sys.stderr.write("".join(f"{render_short_diagnostic(d)}\n" for d in diagnostics))
        case _:
            sys.stderr.write(render_diagnostics(diagnostics, color=is_color_enabled(color)))


def print_note(text: str) -> None:
    """Print a note to stderr unless output is quiet or machine-readable."""
    print_result_line(f"note: {text}", to_stderr=True)


def print_result_line(text: str, *, to_stderr: bool = False) -> None:
    """Print the result of a command unless output is quiet or machine-readable."""
    if get_output_settings().is_text_output_enabled:
        print(text, file=sys.stderr if to_stderr else sys.stdout)


def write_output(
    path: str | Path,
    file_type: OutputFileType,
    content: bytes,
    *,
    inputs: Iterable[str | Path] = (),
    force: bool = False,
) -> None:
    """Write an output file of a command. Raise E0810 to E0816 or E0833 on failure."""
    target = resolve_output_path(path, file_type, inputs=inputs, force=force, content=content)
    write_file_atomically(target, [content])


def print_json_result(values: Mapping[str, object]) -> bool:
    """Print a result as one line of JSON if `--format json` is set. Otherwise return False."""
    settings = get_output_settings()
    if settings.format != "json":
        return False
    result = {"command": settings.command, **values}
    text = json.dumps(replace_non_finite_numbers(result), ensure_ascii=False, allow_nan=False)
    # lone surrogates are written as JSON escapes
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    return True


def is_color_enabled(color: str) -> bool:
    """Return True if messages are colored. The result depends, in order of precedence, on
    `--color`, on NO_COLOR or FORCE_COLOR, and on whether stderr is a terminal.
    """
    if color != "auto":
        return color == "always"
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


Item = TypeVar("Item")

REDRAW_INTERVAL = 0.1
"""Minimum number of seconds between two updates of a progress line."""
PROGRESS_DELAY = 0.5
"""Delay in seconds before the progress line is shown."""


@dataclass
class ProgressLine:
    """A progress line with the written bytes, throughput and remaining time."""

    title: str
    total: int = 0
    count: int = 0
    start_time: float = field(default_factory=time.monotonic)
    last_redraw_time: float = 0.0

    def add_expected_bytes(self, size: int) -> None:
        """Add `size` to the expected number of bytes."""
        self.total += size

    def add_written_bytes(self, size: int) -> None:
        """Add `size` to the number of written bytes."""
        self.count += size
        now = time.monotonic()
        if now - self.start_time > PROGRESS_DELAY and now - self.last_redraw_time > REDRAW_INTERVAL:
            self._show_line(now)

    def finish(self) -> None:
        """Print the final count and end the progress line, if the line is visible."""
        if self.last_redraw_time:
            self._show_line(time.monotonic())
            sys.stderr.write("\n")

    def _show_line(self, now: float) -> None:
        self.last_redraw_time = now
        # move the cursor to the start of the line and erase the line
        sys.stderr.write(f"\r\x1b[K{self.format_text(now - self.start_time)}")
        sys.stderr.flush()

    def format_text(self, seconds: float) -> str:
        """Format the line `writing weights: 1.20 of 4.00 GB, 300 MB a second, 0:09 left`."""
        rate = self.count / seconds if seconds > 0 else 0.0
        progress = f"{self.count / 1e9:.2f} GB"
        parts = [progress, f"{rate / 1e6:.0f} MB/s"]
        if self.total > self.count and rate:
            seconds_left = int((self.total - self.count) / rate)
            parts[0] = f"{self.count / 1e9:.2f} of {self.total / 1e9:.2f} GB"
            parts.append(f"{seconds_left // 60}:{seconds_left % 60:02} left")
        return f"{self.title}: {', '.join(parts)}"


def is_progress_shown() -> bool:
    """Return True if stderr is a terminal and output is neither quiet nor machine-readable."""
    return get_output_settings().is_text_output_enabled and sys.stderr.isatty()


@contextmanager
def show_write_progress(title: str) -> Iterator[None]:
    """A context manager that shows the progress of writing files on a terminal."""
    if not is_progress_shown():
        yield
        return
    line = ProgressLine(title)
    previous = WRITE_PROGRESS.set(line)
    try:
        yield
    finally:
        WRITE_PROGRESS.reset(previous)
        line.finish()


def iterate_with_progress(items: Iterator[Item], label: str) -> Iterator[Item]:
    """Yield items and, if stderr is a terminal, display the number of items yielded so far."""
    if not is_progress_shown():
        yield from items
        return
    for count in itertools.count():
        sys.stderr.write(f"\r\x1b[K{label}, {count} done …")
        sys.stderr.flush()
        item = next(items, None)
        # erase the progress line before other output
        sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()
        if item is None:
            return
        yield item
