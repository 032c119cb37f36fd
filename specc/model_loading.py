"""`specc.load`: open a compiled model.

This module imports only the modules that open the sessions of a package. All other modules are
imported while other threads open the sessions.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from specc.artifact.package_index_and_format_versions import INDEX_FILE
from specc.decode.setting_names_and_limits import PREFILL_CHUNK_SIZE
from specc.diagnostics.diagnostic import SpeccError, raise_error
from specc.driver.option_kinds import (
    COUNT_OPTION,
    INTEGER_OPTION,
    PATH_OPTION,
    STRING_OPTION,
    check_argument_values,
)
from specc.io.safe_read import escape_text, quote_argument
from specc.runtime.package_integrity import open_package_files

if TYPE_CHECKING:
    from specc.model import Model

__all__ = ["load"]

LOAD_KINDS = {
    "model": PATH_OPTION,
    "execution_provider": STRING_OPTION,
    "threads": INTEGER_OPTION,
    "prefill_chunk_size": COUNT_OPTION,
}
"""The accepted types of the arguments of `load`."""


def load(
    model: str | Path,
    *,
    execution_provider: str = "cpu",
    threads: int = 0,
    prefill_chunk_size: int = PREFILL_CHUNK_SIZE,
) -> "Model":
    """Load a compiled model or package on an execution provider, such as `cpu` or `cuda`.

    Prefill processes a prompt in chunks of `prefill_chunk_size` tokens, which bounds the memory of
    activations. 0 disables chunking. If the KV cache is updated in place, a chunk contains several
    whole prompts or a part of one prompt. Nodes never fall back silently to another execution
    provider.

    >>> with specc.load("xor.onnx") as model:
    ...     model
    <specc model xor, predict: x f32[batch, 2] -> y f32[batch, 1], cpu>
    """
    check_argument_values(LOAD_KINDS, locals())
    check_model_is_compiled(model)
    files = open_package_files(Path(model)) if os.path.isdir(model) else None
    if files is not None and execution_provider == "cpu":
        files.open_in_background(threads)
    # these imports take as long as opening the sessions, and run concurrently
    from specc.model import Model
    from specc.runtime.inference_model import open_compiled_model

    loaded_model = Model(
        **vars(
            open_compiled_model(
                model,
                provider=execution_provider,
                threads=threads,
                prefill_chunk_size=prefill_chunk_size,
                files=files,
            )
        )
    )
    # open the sessions now, so that errors are raised here and not at the first use. In a
    # generative or streaming package, the session of the full-forward graph is opened when it is
    # first used.
    if loaded_model.generator is None and loaded_model.streaming_model is None:
        _ = loaded_model.scoring_model
    return loaded_model


_OR_SEED = ", or with --init 0 for random weights in place of --weights DIR"


def check_model_is_compiled(model: str | Path) -> None:
    """Raise E0802 if `model` is the name of a built-in spec, and E0926 if `model` is a spec file or
    a checkpoint directory.
    """
    path = Path(model)
    name = str(model)
    if path.suffix == ".onnx" or (path / INDEX_FILE).exists():
        return
    # import lazily, because a compiled model runs without the spec library
    from specc.library.spec_file_lookup import (
        SPEC_SUFFIXES,
        disambiguate_spec_path,
        find_builtin_specs,
    )

    if not os.path.lexists(path):
        # a model file takes precedence over the built-in spec of the same name
        if not os.path.lexists(f"{name}.onnx") and name in find_builtin_specs():
            _raise_uncompiled(
                "E0802",
                f"`{name}` is a built-in spec, not a compiled model",
                _format_compile_arguments(name, find_builtin_specs()[name]),
            )
        return
    output = _format_output_option(path, path.resolve().stem)
    if path.suffix in SPEC_SUFFIXES and path.is_file():
        arguments = f"{quote_argument(name)} --weights DIR {output}"
        _raise_uncompiled(
            "E0926", f"`{escape_text(name)}` is a spec, not a compiled model", arguments + _OR_SEED
        )
    if (path / "config.json").is_file():
        _raise_uncompiled(
            "E0926",
            f"`{escape_text(name)}` is a checkpoint, not a compiled model",
            f"{quote_argument(disambiguate_spec_path(name))} {output}",
        )


def _format_output_option(path: Path, stem: str) -> str:
    """Return the output options of `specc compile` for a spec file or checkpoint directory: a
    package for a generative model, otherwise a model file.
    """
    # import lazily, because a compiled model runs without the spec library
    from specc.huggingface.model_family import is_generative

    with suppress(SpeccError):
        if is_generative(path):
            return f"--graphs all -o {quote_argument(f'out/{stem}')}"
    return f"-o {quote_argument(f'{stem}.onnx')}"


def _format_compile_arguments(spec: str, path: Path) -> str:
    """Return `specc compile` arguments for a built-in spec, with or without bundled weights."""
    output = _format_output_option(path, spec)
    if path.with_suffix(".safetensors").is_file():
        return f"{spec} {output}"
    return f"{spec} --weights DIR {output}{_OR_SEED}"


def _raise_uncompiled(code: str, title: str, arguments: str) -> NoReturn:
    command, comma, alternative = arguments.partition(",")
    raise_error(
        code, title, helps=[f"compile it first: `specc compile {command}`{comma}{alternative}"]
    )
