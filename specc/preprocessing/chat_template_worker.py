"""The subprocess that renders a chat template with resource limits."""

import json
import sys
from typing import Any


def render_template_from_stdin() -> None:
    """Read a JSON request from stdin, render the chat template, and print the result."""
    request: dict[str, Any] = json.loads(sys.stdin.buffer.read())
    # use the package paths of the parent process, because this process runs without site packages
    sys.path[:] = request["path"]
    try:
        response = {"text": _render_template(request)}
        if len(response["text"]) > request["max_length"]:
            response = {"error": f"it returns more than {request['max_length']} characters"}
    except MemoryError:
        response = {"error": "it takes too much memory"}
    except RecursionError:
        response = {"error": "its nesting is too deep"}
    except Exception as error:  # a template may raise any type of exception
        response = {"error": f"{_find_line(error)}{type(error).__name__}: {error}"[:500]}
    sys.stdout.write(json.dumps(response))


def _find_line(error: BaseException) -> str:
    """Return `in line N: ` for the template line that raised `error`, or "" if it is unknown."""
    line: int | None = vars(error).get("lineno")
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == "<template>":
            line = frame.tb_lineno  # the last frame of a traceback is the innermost
        frame = frame.tb_next
    return "" if line is None else f"in line {line}: "


def _render_template(request: dict[str, Any]) -> str:
    """Render a chat in a Jinja environment like that of transformers."""
    environment = _make_environment()
    _set_limits(request["cpu_seconds"], request["memory_bytes"])
    text: str = environment.from_string(request["template"]).render(
        messages=request["messages"],
        tools=None,
        documents=None,
        add_generation_prompt=True,
        **request["tokens"],
    )
    return text


def _make_environment() -> Any:
    """Create a sandboxed Jinja environment with the globals and filters of chat templates."""
    from datetime import datetime

    import jinja2
    from jinja2.ext import loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_template_error(message: str) -> None:
        raise jinja2.exceptions.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_make_generation_extension(), loopcontrols],
    )
    environment.filters["tojson"] = _serialize_json
    environment.globals["raise_exception"] = raise_template_error
    environment.globals["strftime_now"] = lambda format: datetime.now().strftime(format)
    return environment


def _make_generation_extension() -> Any:
    """Return a Jinja extension that renders the content of `{% generation %}` blocks."""
    from jinja2 import nodes
    from jinja2.ext import Extension

    class Generation(Extension):
        """The `generation` block of chat templates, which only has an effect in training."""

        tags = {"generation"}  # noqa: RUF012 - as the base class has it

        def parse(self, parser: Any) -> Any:
            """Parse a `generation` block. Return a call that renders the content of the block."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            call = self.call_method("inside", [])
            return nodes.CallBlock(call, [], [], body).set_lineno(line)

        def inside(self, caller: Any) -> Any:
            """Return the rendered content of the block."""
            return caller()

    return Generation


def _serialize_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize a value to JSON without HTML escapes, unlike Jinja's `tojson` filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _set_limits(seconds: int, size: int) -> None:
    """Limit the CPU time in seconds and the memory in bytes of this process."""
    if sys.platform == "win32":
        return  # without resource limits on Windows, the parent's timeout applies
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


if __name__ == "__main__":
    render_template_from_stdin()
