"""`check` counts tied weights once."""

import pytest
from support.elaborated_specs import elaborate_with_config

from specc.cli.main import main
from specc.driver.spec_check_and_elaboration import check_spec
from specc.driver.spec_loader import open_spec
from specc.driver.weights_section_and_load_transforms import count_untied_parameters
from specc.ir.dim import multiply_dims, sum_dims


@pytest.mark.parametrize("tied", [True, False])
def test_tied_weights_are_counted_once(tied: bool, capsys: pytest.CaptureFixture[str]) -> None:
    found = elaborate_with_config("lstm_lm", vocab=17, width=6, tied=tied)
    facts = found.model.graph.parameter_facts.values()
    every = sum_dims(multiply_dims(f.type.shape) for f in facts).number or 0
    own = every - 17 * 6 if tied else every
    assert count_untied_parameters(found.model.graph).number == own
    sets = [f"--set={s}" for s in ("vocab=17", "width=6", f"tied={str(tied).lower()}")]
    assert main(["check", "lstm_lm", *sets]) == 0
    assert f"{own} parameters" in capsys.readouterr().out.replace(" ", " ")


@pytest.mark.parametrize("name", ["lstm_lm", "gpt2", "t5", "albert", "clip"])
def test_check_and_show_print_the_same_count(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", name]) == 0
    count = next(line for line in capsys.readouterr().out.splitlines() if " parameters" in line)
    assert main(["check", name]) == 0
    assert f"with this config: {count}\n" in capsys.readouterr().out
    model = check_spec(open_spec(name)).model
    assert model is not None
    assert (
        count.replace("\u202f", "")
        .replace("\xa0", "")
        .replace(" ", "")
        .startswith(f"{count_untied_parameters(model.graph)}parameters")
    )
