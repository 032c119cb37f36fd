"""Train a spec: modules, data sets, and saving of trained weights.

model = specc_torch.module("my.yaml")
data = specc_torch.Dataset(model, rows)
for inputs, wanted in data.loader(64):
    loss = cross_entropy(model(**inputs)["logits"], wanted["logits"])
specc_torch.save(model, "my.safetensors")
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from specc.diagnostics.diagnostic import raise_error
from specc.driver.python_arguments import check_arguments, errors_in_spec_syntax, open_spec_argument
from specc.driver.weight_sources import WeightSources, open_training_spec
from specc.io.output_paths import TRAINED_WEIGHTS_OUTPUT, resolve_output_path
from specc.ir.array import Array
from specc.runtime.training_batches import Row, TrainingBatches, check_training_rows
from specc_torch.spec_module import SpecModule

Tensors: TypeAlias = dict[str, Tensor]


@errors_in_spec_syntax()
def module(
    spec: str | Path,
    *,
    weights: str | Path = "",
    init: int | None = None,
    init_missing: int | None = None,
    adapter: str | Path = "",
    config: str | Path = "",
    set: Mapping[str, object] | None = None,
    context: int = 0,
    graph: str = "",
) -> SpecModule:
    """The graph of a spec as an `nn.Module`, whose parameters bear the spec's names and
    are shared where the spec ties them. `model(pixel_values=x)` gives results by name.

    The arguments are those of `specc.compile`. Parameters start from `weights`, from the
    seed `init`, or from the weights that the spec names; where nothing is said of any,
    from the seed 0. Fails as `specc.compile` does.
    """
    check_arguments(**locals())  # all of them, before anything else has a name
    described = open_spec_argument(
        spec, config=config, given=set, weights=str(weights), longest=int(context)
    )
    sources = WeightSources(
        path=str(weights) if weights else "",
        init=None if init is None else int(init),
        missing=None if init_missing is None else int(init_missing),
        adapter=str(adapter) if adapter else "",
    )
    found = open_training_spec(described, sources, graph)
    return SpecModule(
        found.graph,
        found.values,
        ties=found.ties,
        defaults=found.defaults,
        lessons=TrainingBatches(
            graph=found.graph,
            reading=found.reading,
            defaults=found.defaults,
            generation=found.generation,
        ),
    )


def batch(model: nn.Module, rows: Sequence[Row]) -> tuple[Tensors, Tensors]:
    """What the model is given and what it should have said, for some rows of data, where
    the model is. See `Dataset`. Fails with E0946, E0947, and E09xx on inputs.
    """
    own = unwrap_spec_module(model)
    place = next((p.device for p in own.parameters()), torch.device("cpu"))
    inputs, wanted = _make_training_batches(own).batch(rows)
    return _to_tensors(inputs, place), _to_tensors(wanted, place)


class Dataset(TorchDataset[Row]):
    """Rows of data, read as the spec's `reading` says when they are asked for.

    A row names inputs as `Model.run` takes them (arrays, texts, pictures or their
    files), and results: a label, a text, numbers. For a model that writes it names the
    growing input with a whole text; the model is given that text behind its start, and
    should have said each next token and a stop. Fails with E0946 and E0947.
    """

    def __init__(self, model: nn.Module, rows: Sequence[Row]) -> None:
        self.lessons = _make_training_batches(unwrap_spec_module(model))
        self.rows = check_training_rows(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Row:
        return self.rows[index]

    def collate(self, rows: Sequence[Row]) -> tuple[Tensors, Tensors]:
        """Rows as `(inputs, wanted)`: `model(**inputs)` takes the first; the second is
        i64 or f32 by result, -100 where nothing should have been said.
        """
        inputs, wanted = self.lessons.batch(rows)
        place = torch.device("cpu")
        return _to_tensors(inputs, place), _to_tensors(wanted, place)

    def loader(
        self, size: int, *, shuffle: bool = True, seed: int = 0, workers: int = 0
    ) -> DataLoader[Row]:
        """Batches of `size` rows, in an order that the seed decides, read by `workers`
        further processes.
        """
        order = torch.Generator().manual_seed(seed)
        return DataLoader(
            self,
            batch_size=size,
            shuffle=shuffle,
            generator=order,
            num_workers=workers,
            collate_fn=self.collate,
        )


def save(
    model: nn.Module,
    path: str | Path,
    metadata: Mapping[str, str] | None = None,
    *,
    force: bool = False,
) -> None:
    """The parameters as a safetensors file, which `specc compile --weights` and the
    spec's own `weights: - from: …` read. Shared ones stand in it once.

    All or nothing; a file that specc did not write is replaced with `force` alone
    (E0833). A module inside another (of `torch.compile`, of `DataParallel`) is found.
    """
    unwrap_spec_module(model).save(path, metadata, force=force)


def check_output(path: str | Path, *, force: bool = False) -> None:
    """Fails now with what `save` would fail with in the end, as far as it can be known:
    E0811, E0816, E0833. Nothing is written.
    """
    resolve_output_path(path, TRAINED_WEIGHTS_OUTPUT, force=force)


def unwrap_spec_module(model: nn.Module) -> SpecModule:
    """The module of a spec, taken out of those that stand around it. E0820 for another."""
    inner = model
    # what torch.compile and the parallel wrappers call what they hold
    while not isinstance(inner, SpecModule):
        names = [n for n in ("_orig_mod", "module") if n in inner._modules]
        found = inner._modules[names[0]] if names else None
        if found is None:
            raise_error(
                "E0820",
                f"`model` is a module that specc_torch made, not a {type(model).__name__}",
                helps=['make one with specc_torch.module("my.yaml")'],
            )
        inner = found
    return inner


def _make_training_batches(model: SpecModule) -> TrainingBatches:
    if model.lessons is None:
        raise_error(
            "E0820",
            "this module was made of a graph alone, which does not say how data is read",
            helps=['make it with specc_torch.module("my.yaml")'],
        )
    return model.lessons


def _to_tensors(arrays: Mapping[str, Array], place: torch.device) -> Tensors:
    return {
        name: torch.from_numpy(np.ascontiguousarray(array)).to(place)
        for name, array in arrays.items()
    }
