"""Report an error if a spec or a checkpoint is given where a compiled model is expected."""

import os
from pathlib import Path
from typing import NoReturn

from specc.artifact.package_index_and_integrity import INDEX_FILE
from specc.diagnostics.diagnostic import raise_error
from specc.io.safe_read import escape_text

_OR_SEED = ", or with --init 0 for random weights in place of --weights DIR"


def check_model_is_compiled(model: str | Path) -> None:
    """Raise E0802 if `model` is the name of a built-in spec, and E0926 if `model` is a spec file or
    a checkpoint directory.
    """
    path = Path(model)
    name = str(model)
    if path.suffix == ".onnx" or (path / INDEX_FILE).exists():
        return
    # import here, because a compiled model runs without the spec library
    from specc.library.spec_file_lookup import (
        SPEC_SUFFIXES,
        disambiguate_spec_path,
        find_builtin_specs,
        get_specs_directory,
    )

    if not os.path.lexists(path):
        # a model file takes precedence over the built-in spec of the same name
        if not os.path.lexists(f"{name}.onnx") and name in find_builtin_specs():
            _raise_uncompiled(
                "E0802",
                f"`{name}` is a built-in spec, not a compiled model",
                _format_compile_arguments(name, get_specs_directory() / "models"),
            )
        return
    output = f"{escape_text(path.resolve().stem)}.onnx"
    if path.suffix in SPEC_SUFFIXES and path.is_file():
        arguments = f"{escape_text(name)} --weights DIR -o {output}"
        _raise_uncompiled(
            "E0926", f"`{escape_text(name)}` is a spec, not a compiled model", arguments + _OR_SEED
        )
    if (path / "config.json").is_file():
        _raise_uncompiled(
            "E0926",
            f"`{escape_text(name)}` is a checkpoint, not a compiled model",
            f"{escape_text(disambiguate_spec_path(name))} -o {output}",
        )


def _format_compile_arguments(spec: str, directory: Path) -> str:
    """Return `specc compile` arguments for a built-in spec, with or without bundled weights."""
    if (directory / f"{spec}.safetensors").is_file():
        return f"{spec} -o {spec}.onnx"
    return f"{spec} --weights DIR -o {spec}.onnx{_OR_SEED}"


def _raise_uncompiled(code: str, title: str, arguments: str) -> NoReturn:
    command, comma, alternative = arguments.partition(",")
    raise_error(
        code, title, helps=[f"compile it first: `specc compile {command}`{comma}{alternative}"]
    )
