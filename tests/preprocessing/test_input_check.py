"""Input arrays are checked against the input specs of the model and against each other."""

from dataclasses import replace

import numpy as np
import pytest

from specc.diagnostics.diagnostic import Diagnostic, SpeccError
from specc.preprocessing.input_checks import InputSpec, LengthBound, check_inputs

SOURCE = InputSpec(name="source", dtype="i64", dims=("batch", "src"), id_limit=100)
TARGET = InputSpec(name="target", dtype="i64", dims=("batch", "tgt"), id_limit=50)
KEEP = InputSpec(name="source_keep", dtype="bool", dims=("batch", "src"), is_optional=True)
PIXELS = InputSpec(name="pixels", dtype="f32", dims=("batch", 1, 8, 8))


def get_errors(specs, given, **options) -> tuple[Diagnostic, ...]:
    with pytest.raises(SpeccError) as caught:
        check_inputs(specs, given, **options)
    return caught.value.diagnostics


def make_ids(*shape: int) -> np.ndarray:
    return np.ones(shape, np.int64)


def test_valid_inputs_are_converted():
    given = {"target": np.ones((2, 3), ">i4"), "source": np.ones((5, 2), np.int32).T}
    result = check_inputs([SOURCE, TARGET, KEEP], given)
    assert list(result) == ["source", "target"]
    for array in result.values():
        assert array.dtype == np.int64
        assert array.dtype.isnative
        assert array.flags.c_contiguous


def test_length_mismatch_across_inputs():
    (fault,) = get_errors([SOURCE, TARGET], {"source": make_ids(3, 4), "target": make_ids(1, 4)})
    assert fault.code == "E0912"
    assert fault.title == "`batch` is 3 in `source` but 1 in `target`"


def test_length_mismatch_within_an_input():
    (fault,) = get_errors(
        [InputSpec(name="m", dtype="f32", dims=("n", "n"))], {"m": np.zeros((2, 3))}
    )
    assert fault.title == "`n` is 2 on one axis of `m` but 3 on another"


def test_fixed_lengths():
    (fault,) = get_errors([PIXELS], {"pixels": np.zeros((1, 1, 8, 9))})
    assert fault.title == "axis 3 of `pixels` has length 9, expected 8"


def test_computed_lengths():
    spec = InputSpec(name="patches", dtype="f32", dims=("batch", "src ** 2 + 1"))

    def solve(text, known):
        assert text == "src ** 2 + 1"
        return known["src"] ** 2 + 1

    given = {"patches": np.zeros((1, 10)), "source": make_ids(1, 3)}
    assert check_inputs([spec, SOURCE], given, evaluate_dim=solve)["patches"].shape == (1, 10)
    (fault,) = get_errors([spec, SOURCE], given | {"source": make_ids(1, 2)}, evaluate_dim=solve)
    assert fault.title == "axis 1 of `patches` has length 10, but `src ** 2 + 1` is 5 here"
    # without a solver the length is not checked
    assert check_inputs([spec, SOURCE], given | {"source": make_ids(1, 2)})


def test_names():
    (misspelled,) = get_errors([SOURCE], {"sorce": make_ids(1, 1)})
    assert misspelled.code == "E0910"
    assert misspelled.title == "the model has no input `sorce`"
    assert misspelled.helps == ("did you mean `source`?",)
    unknown, missing = get_errors([SOURCE], {"zebra": make_ids(1, 1)})
    assert unknown.title == "the model has no input `zebra`"
    assert missing.title == "missing model input `source`"
    assert missing.helps == ("pass an array of the type i64[batch, src] with this name",)
    (missing,) = get_errors([replace(SOURCE, accepts_text=True)], {})
    assert missing.helps[0].startswith("pass text (a string or a list of strings) or an array of ")


def test_ranks():
    (fault,) = get_errors([PIXELS], {"pixels": np.zeros((1, 8, 8))})
    assert fault.code == "E0911"
    assert fault.helps == ("add a batch axis: `[x]` for a list `x`, `x[None]` for an array `x`",)


def test_types():
    (fault,) = get_errors([SOURCE], {"source": np.zeros((1, 1))})
    assert fault.code == "E0907"


def test_objects_are_refused():
    assert get_errors([SOURCE], {"source": np.array([[None]])})[0].code == "E0907"


@pytest.mark.parametrize(("value", "fits"), [(0, True), (99, True), (100, False), (-1, False)])
def test_ids_outside_the_embedding(value, fits):
    array = make_ids(2, 3)
    array[1, 2] = value
    if fits:
        check_inputs([SOURCE], {"source": array})
    else:
        (fault,) = get_errors([SOURCE], {"source": array})
        assert fault.code == "E0913"
        assert f"the id {value} at [1, 2], expected 0 to 99" in fault.title


def test_nan_names_its_position():
    array = np.zeros((1, 1, 8, 8))
    array[0, 0, 2, 3] = np.nan
    (fault,) = get_errors([PIXELS], {"pixels": array})
    assert fault.code == "E0914"
    assert "[0, 0, 2, 3]" in fault.title


def test_bounds():
    bounds = {"src": LengthBound(1, 4, "the table of positions has 4 rows")}
    for length in (1, 4):
        check_inputs([SOURCE], {"source": make_ids(2, length)}, bounds=bounds)
    for length, text in ((0, "at least 1"), (5, "at most 4")):
        (fault,) = get_errors([SOURCE], {"source": make_ids(2, length)}, bounds=bounds)
        assert fault.code == "E0912"
        assert text in fault.title
        assert fault.notes == ("the table of positions has 4 rows",)


def test_empty_batch():
    assert check_inputs([PIXELS], {"pixels": np.zeros((0, 1, 8, 8))})["pixels"].shape[0] == 0


def test_all_errors_are_reported():
    given = {"source": make_ids(1, 2) * 100, "target": np.zeros((2, 2)), "more": make_ids(1)}
    assert {fault.code for fault in get_errors([SOURCE, TARGET], given)} == {
        "E0907",
        "E0910",
        "E0913",
    }
