"""The results of `specc verify` as text, one line per round."""

from collections.abc import Iterator
from typing import Any

from specc.runtime.inference_model import InferenceModel
from specc.runtime.model_package import ModelPackage
from specc.runtime.single_model_file import LoadedModel
from specc.verification.model_verification import verify_graph, verify_model, verify_package


def list_model_lines(model: LoadedModel, **options: Any) -> Iterator[str]:
    """Return the lines of one model."""
    return map(str, verify_graph(model, **options))


def list_package_lines(package: ModelPackage, **options: Any) -> Iterator[str]:
    """Return the lines of the graphs of a package."""
    return map(str, verify_package(package, **options))


def list_opened_lines(model: InferenceModel, *, seed: int, rounds: int) -> Iterator[str]:
    """Return the lines of a file or package."""
    return map(str, verify_model(model, seed=seed, rounds=rounds))
