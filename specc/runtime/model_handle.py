"""The handle of an open model and everything it reports about itself."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from specc.artifact.manifest import Manifest
from specc.backend import Computation, ModelFile
from specc.diagnostics.diagnostic import raise_error
from specc.diagnostics.object_repr import format_repr, render_html_table
from specc.io.safe_read import Closeable
from specc.ir.array import Array
from specc.runtime.generator import Generator
from specc.runtime.loaded_model import LoadedModel
from specc.runtime.model_inputs import ModelInputs
from specc.runtime.open_model import OpenedModel


@dataclass(frozen=True, repr=False)
class ModelHandle(Closeable):
    """What lies at `opened.path`, ready to be used until it is closed."""

    opened: OpenedModel

    def __repr__(self) -> str:
        return format_repr(f"model {self._signed}, {self.opened.provider}")

    def _repr_html_(self) -> str:
        """What it takes and gives, for a notebook."""
        roles = self.opened.package.roles if self.opened.package else ()
        writes = self.writer.generation.name if self._open and self.writer else ""
        return render_html_table(
            f"specc model {self.opened.path}",
            [
                ("graph", self._signed),
                ("writes", writes),
                ("graphs of the package", ", ".join(roles)),
                ("provider", self.opened.provider),
            ],
        )

    def close(self) -> None:
        """Release the runtime sessions; later calls raise E0949. A `with` block closes the
        model.
        """
        self.opened.close()

    @property
    def _open(self) -> bool:
        return not self.opened.closed

    @property
    def _signed(self) -> str:
        """Its name, what it takes and what it gives."""
        if not self._open:
            return f"at {self.opened.path}, closed"
        if self.scoring is not None:
            manifest = self.scoring.manifest
            return f"{manifest.name}, {manifest.graph.signed()}"
        return self.entrance.graph.signed()

    @property
    def scoring(self) -> LoadedModel | None:
        """The whole graph, where there is one."""
        return self.opened.scoring

    @property
    def writer(self) -> Generator | None:
        """What writes, where something does."""
        return self.opened.writer

    @property
    def whole(self) -> LoadedModel:
        """The whole graph. E0832 where a package lacks it."""
        if self.scoring is None:
            raise_error(
                "E0832",
                "this package has no `score` graph",
                helps=["compile it with `score` among its parts"],
            )
        return self.scoring

    def prepared(self, inputs: Mapping[str, object]) -> dict[str, Array]:
        """Checked arrays for every input of the whole graph, defaults filled in."""
        return self.whole.prepared(inputs)

    @property
    def entrance(self) -> ModelInputs:
        """What may be given to it."""
        if self.scoring is None and self.writer:
            return self.writer.entrance
        if self.scoring is None and self.opened.streamer:
            return self.opened.streamer.entrance
        return self.whole.entrance

    @property
    def path(self) -> Path:
        """Where the whole graph lies."""
        return self.whole.path

    @property
    def manifest(self) -> Manifest:
        """What the whole graph says about itself."""
        return self.whole.manifest

    @property
    def file(self) -> ModelFile:
        """The file of the whole graph."""
        return self.whole.file

    @property
    def session(self) -> Computation:
        """The whole graph in the runtime."""
        return self.whole.session

    def exact(self) -> LoadedModel:
        """The whole graph with nothing rounded but weights."""
        return self.whole.exact()

    def weights(self) -> dict[str, Array]:
        """Return the parameters by name, in the layout that the graph reads.

        Matrices that the checkpoint stores as [in, out] may have that layout.
        """
        return self.whole.weights()
