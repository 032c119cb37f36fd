"""What was given to be run, and has to be compiled first."""

import os
from pathlib import Path
from typing import NoReturn

from specc.artifact.index import NAME
from specc.files.read import shown
from specc.text.diagnostic import fail

_OR_SEED = ", or with --init 0 for random weights in place of --weights DIR"


def refuse_uncompiled(model: str | Path) -> None:
    """Lets pass what may be a compiled model. E0802 for the name of a shipped spec,
    E0926 for a spec's own file and for a checkpoint.
    """
    path = Path(model)
    name = str(model)
    if path.suffix == ".onnx" or (path / NAME).exists():
        return
    # what running a model does without, and half of what it takes to begin
    from specc.library.files import SUFFIXES, explicit_path, root, shipped

    if not os.path.lexists(path):
        # a model beside it was meant rather than the spec
        if not os.path.lexists(f"{name}.onnx") and name in shipped():
            _say(
                "E0802",
                f"there is no model `{name}`; it is the name of a spec",
                _command(name, root() / "models"),
            )
        return
    out = f"{shown(path.resolve().stem)}.onnx"
    if path.suffix in SUFFIXES and path.is_file():
        given = f"{shown(name)} --weights DIR -o {out}"
        _say("E0926", f"`{shown(name)}` is a spec, and no model yet", given + _OR_SEED)
    if (path / "config.json").is_file():
        _say(
            "E0926",
            f"`{shown(name)}` is a checkpoint, and no model yet",
            f"{shown(explicit_path(name))} -o {out}",
        )


def _command(spec: str, folder: Path) -> str:
    """How a shipped spec is compiled: a trained one with the weights that it names."""
    if (folder / f"{spec}.safetensors").is_file():
        return f"{spec} -o {spec}.onnx"
    return f"{spec} --weights DIR -o {spec}.onnx{_OR_SEED}"


def _say(code: str, title: str, command: str) -> NoReturn:
    line, comma, more = command.partition(",")
    fail(code, title, helps=[f"compile it first: `specc compile {line}`{comma}{more}"])
