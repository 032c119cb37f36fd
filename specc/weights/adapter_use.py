"""What became of an adapter's changes in a model: each is used, and none in a place that it
was not trained for.
"""

from dataclasses import replace

from specc.files.read import shown
from specc.text.diagnostic import Diagnostic, Label, fail
from specc.weights.names import listed
from specc.weights.transform import tensors_of
from specc.weights.values import Binding


def reached(binding: Binding) -> Binding:
    """The binding of an adapted checkpoint, with a warning (W0534) about changes that no
    parameter shows. Fails with E0531 where a changed weight is tied to another.
    """
    computed = binding.checkpoint.computed
    used: set[str] = set()
    for bound in binding.bound.values():
        if bound.expr is not None:
            used.update(tensors_of(bound.expr))
    for name, bound in binding.bound.items():
        root = bound.tied_to
        expr = binding.bound[root].expr if root is not None else None
        # The adapter was trained beside the other user of the weight, which kept it as
        # it was: in one weight for both there is no room for that.
        for tensor in tensors_of(expr) if expr is not None else ():
            if tensor in computed:
                _tied(binding, name, tensor)
    if lost := sorted(computed - used):
        warning = Diagnostic(
            "W0534",
            f"the adapter changes {len(lost)} weight{'s' if len(lost) > 1 else ''} that "
            "this graph does not have",
            notes=(shown(listed(lost, 8)),),
            helps=("is it made for another head? `--graph` chooses one",),
            severity="warning",
        )
        return replace(binding, warnings=(*binding.warnings, warning))
    return binding


def _tied(binding: Binding, name: str, tensor: str) -> None:
    wanted = binding.bound[name].wanted
    label = [Label(wanted.span, wanted.made_by)] if wanted.span else []
    fail(
        "E0531",
        f"the adapter changes `{shown(tensor)}`, which `{shown(name)}` shares",
        label[0].span if label else None,
        label[0].text if label else "",
        notes=[
            "the adapter was trained beside the shared weight, which stayed as it was"
        ],
        helps=[
            "merge it where it was trained: `merge_and_unload` of peft says what to do "
            "with shared weights"
        ],
    )
