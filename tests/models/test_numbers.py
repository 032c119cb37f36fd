"""Numbers as English and German words: the rules of the training pairs, and the spec that
translates them.
"""

import importlib.util
import json
import random
import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from support.parameter_sweeps import sample_sweep

import specc
from specc.cli.main import main
from specc.driver.preprocessing_section import build_preprocessing_config
from specc.driver.spec_check_and_elaboration import elaborate_spec
from specc.driver.spec_loader import open_spec
from specc.preprocessing.preprocessing_records import CharTokenizer
from specc.preprocessing.text_codec import decode_text, encode_text_to_ids
from specc.preprocessing.vocabulary import format_vocabulary_line

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "docs" / "demos" / "numbers"


def loaded(name: str, path: Path) -> ModuleType:
    found = importlib.util.spec_from_file_location(name, path)
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses look up their module
    found.loader.exec_module(module)
    return module


data = loaded("numbers_data", DEMO / "data.py")


@pytest.fixture(scope="module")
def record() -> CharTokenizer:
    spec = open_spec("numbers")
    found = build_preprocessing_config(spec.program, elaborate_spec(spec)).get_input_config(
        "source"
    )
    assert isinstance(found, CharTokenizer)
    return found


FORMS = [
    (0, "zero", "null"),
    (1, "one", "eins"),
    (11, "eleven", "elf"),
    (12, "twelve", "zwölf"),
    (16, "sixteen", "sechzehn"),
    (17, "seventeen", "siebzehn"),
    (20, "twenty", "zwanzig"),
    (21, "twenty-one", "einundzwanzig"),
    (30, "thirty", "dreißig"),
    (40, "forty", "vierzig"),
    (66, "sixty-six", "sechsundsechzig"),
    (77, "seventy-seven", "siebenundsiebzig"),
    (100, "one hundred", "einhundert"),
    (101, "one hundred and one", "einhunderteins"),
    (116, "one hundred and sixteen", "einhundertsechzehn"),
    (305, "three hundred and five", "dreihundertfünf"),
    (700, "seven hundred", "siebenhundert"),
    (1000, "one thousand", "eintausend"),
    (1001, "one thousand and one", "eintausendeins"),
    (1021, "one thousand and twenty-one", "eintausendeinundzwanzig"),
    (1100, "one thousand one hundred", "eintausendeinhundert"),
    (2017, "two thousand and seventeen", "zweitausendsiebzehn"),
    (11000, "eleven thousand", "elftausend"),
    (21000, "twenty-one thousand", "einundzwanzigtausend"),
    (30033, "thirty thousand and thirty-three", "dreißigtausenddreiunddreißig"),
    (100000, "one hundred thousand", "einhunderttausend"),
    (101000, "one hundred and one thousand", "einhunderteintausend"),
    (
        101101,
        "one hundred and one thousand one hundred and one",
        "einhunderteintausendeinhunderteins",
    ),
    (
        999999,
        "nine hundred and ninety-nine thousand nine hundred and ninety-nine",
        "neunhundertneunundneunzigtausendneunhundertneunundneunzig",
    ),
]


@pytest.mark.parametrize(("number", "english", "german"), FORMS, ids=[str(n) for n, _, _ in FORMS])
def test_numbers_are_written_in_the_canonical_form(number: int, english: str, german: str) -> None:
    assert data.spell_english(number) == english
    assert data.spell_german(number) == german


OTHER_ENGLISH = [
    (101, data.EnglishStyle(tie=" "), "one hundred one"),
    (101, data.EnglishStyle(one="a "), "a hundred and one"),
    (1100, data.EnglishStyle(one="a "), "a thousand one hundred"),
    (101101, data.EnglishStyle(one="a ", tie=" "), "a hundred one thousand one hundred one"),
    (21021, data.EnglishStyle(hyphen=" "), "twenty one thousand and twenty one"),
]
OTHER_GERMAN = [
    (100, data.GermanStyle(one=""), "hundert"),
    (1100, data.GermanStyle(one=""), "tausendeinhundert"),
    (101101, data.GermanStyle(one=""), "hunderteintausendeinhunderteins"),
    (1001, data.GermanStyle(one="", tie="und"), "tausendundeins"),
    (101, data.GermanStyle(tie="und"), "einhundertundeins"),
    (121, data.GermanStyle(tie="und"), "einhunderteinundzwanzig"),
    (12035, data.GermanStyle(plain=True), "zwoelftausendfuenfunddreissig"),
]


@pytest.mark.parametrize(
    ("number", "form", "words"), OTHER_ENGLISH, ids=[w for _, _, w in OTHER_ENGLISH]
)
def test_other_english_forms_are_read(number: int, form: object, words: str) -> None:
    assert data.spell_english(number, form) == words


@pytest.mark.parametrize(
    ("number", "form", "words"), OTHER_GERMAN, ids=[w for _, _, w in OTHER_GERMAN]
)
def test_other_german_forms_are_read(number: int, form: object, words: str) -> None:
    assert data.spell_german(number, form) == words


def test_every_text_has_one_reading() -> None:
    rng = random.Random(0)
    meant: dict[str, int] = {}
    for number in [*range(1200), *(rng.randrange(data.LIMIT) for _ in range(2000))]:
        for words in (*(data.spell_english(number, f) for f in data.ENGLISH_STYLES),
                      *(data.spell_german(number, f) for f in data.GERMAN_STYLES)):  # fmt: skip
            assert meant.setdefault(words, number) == number, words


def test_held_out_numbers_are_not_training_data() -> None:
    assert not any(data.is_validation_number(n) for n in range(data.ALWAYS_SEEN))
    share = sum(data.is_validation_number(n) for n in range(20000)) / 20000
    assert 0.04 < share < 0.06
    seen = {
        int(wanted)
        for _, wanted in data.make_training_pairs(data.WORDS_TO_DIGITS, 15000, random.Random(1))
    }
    assert seen >= set(range(100))
    asked = {
        given for _, f in data.DIRECTIONS.items() for given, _ in data.make_validation_pairs(f, 300)
    }
    trained = {
        given
        for d in (data.WORDS_TO_DIGITS, data.DIGITS_TO_WORDS)
        for given, _ in data.make_training_pairs(d, 4000, random.Random(2))
    }
    assert not asked & trained


def test_every_length_is_sampled() -> None:
    rng = random.Random(3)
    lengths = [len(str(data.sample_number(rng))) for _ in range(2000)]
    assert min(lengths.count(n) for n in data.LENGTHS) > 100


def test_the_spec_knows_every_character(record: CharTokenizer) -> None:
    listed = (ROOT / "specs" / "models" / "numbers.vocab").read_text(encoding="utf-8")
    tokens = ["<pad>", "<start>", "<end>", *data.list_characters()]
    assert listed == "".join(f"{format_vocabulary_line(token)}\n" for token in tokens)
    for direction in data.DIRECTIONS.values():
        for pair in data.make_validation_pairs(direction, 200):
            for text in pair:
                ids = encode_text_to_ids(text, record)
                assert ids[-1] == record.end_token_id
                assert decode_text(ids, record) == text


def test_batches_contain_encoded_pairs(
    record: CharTokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "data", data)
    batches = loaded("numbers_batches", DEMO / "batches.py")
    known = set(record.vocab)
    ids = tuple(
        int(encode_text_to_ids(chr(c), record)[0]) if chr(c) in known else -1 for c in range(256)
    )
    texts = ["dreißig", "en 305", "one hundred and twenty-one", "0"]
    rows = batches.Alphabet(ids, 0, record.end_token_id).encode_texts(texts)
    assert rows.shape == (4, 27)
    for row, text in zip(rows, texts, strict=True):
        np.testing.assert_array_equal(row[: len(text) + 1], encode_text_to_ids(text, record))
        assert not row[len(text) + 1 :].any()
    jobs = [
        batches.BatchJob(batches.Alphabet(ids, 0, record.end_token_id), 3, 5, number)
        for number in (0, 0, 1)
    ]
    first, again, other = (job.generate_batches() for job in jobs)
    assert [x.shape[:2] for half in first for x in half] == [(batches.STEPS_PER_JOB, 3)] * 4
    assert all(
        np.array_equal(a, b)
        for f, g in zip(first, again, strict=True)
        for a, b in zip(f, g, strict=True)
    )
    assert not np.array_equal(first[0][1], other[0][1])


def test_the_compiled_model_is_small(tmp_path: Path) -> None:
    path = tmp_path / "numbers.onnx"
    specc.compile("numbers", path, init=0)
    assert path.stat().st_size < 1_000_000
    model = specc.load(path)
    ids = np.ones((2, 6), np.int64)
    assert model.run(source=ids, target=ids[:, :3])["logits"].shape == (2, 3, 39)


ANSWERS = {
    "three hundred and five": "305",
    "twenty one thousand sixteen": "21016",
    "dreihundertfünf": "305",
    "hunderteintausendeinhunderteins": "101101",
    "en 305": "three hundred and five",
    "en 101101": "one hundred and one thousand one hundred and one",
    "de 305": "dreihundertfünf",
    "de 30016": "dreißigtausendsechzehn",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbers") / "numbers.onnx"
    specc.compile("numbers", path)
    return path


@pytest.mark.parametrize("text", sample_sweep([*ANSWERS]))
def test_it_translates_in_both_directions(
    trained: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(trained), text]) == 0
    assert capsys.readouterr().out.splitlines()[0] == ANSWERS[text]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("numbers") / "numbers"
    specc.compile("numbers", path, graphs=("score", "encode", "step"))
    return path


@pytest.mark.parametrize(("text", "answer"), [("de 305", "dreihundertfünf"), ("en 5", "five")])
def test_the_attention_plot_is_labeled_with_input_and_output(
    package: Path, text: str, answer: str, tmp_path: Path
) -> None:
    """Also if both have equal lengths."""
    page = tmp_path / "a.html"
    assert main(["run", str(package), text, "--attention", str(page)]) == 0
    found = re.search(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert found
    data = json.loads(found[1])
    last = data["maps"][-1]
    assert last["scope"] == "decoder.layers.2.encoder_attn"
    down, across = (data["axes"][last[side]]["labels"] for side in ("queries", "keys"))
    assert "".join(down[:-1]) == answer
    assert [c for c in across[:-1] if c.isalnum()] == [c for c in text if c.isalnum()]
    assert len(across) == len(text) + 1
    own = data["maps"][-2]
    assert own["scope"] == "decoder.layers.2.self_attn"
    fed = data["axes"][own["queries"]]
    assert fed["role"] == "generated"
    assert "".join(fed["labels"][1:]) == answer, "what was fed begins with the start"


def test_a_standalone_generator_takes_texts_of_different_lengths(tmp_path: Path) -> None:
    """The model finds padding itself: after the shorter text are padding tokens of its spec."""
    specc.compile("numbers", tmp_path / "numbers.onnx", graphs=["generate"])
    model = specc.load(tmp_path / "numbers.onnx")
    texts = [row[0].text for row in model.generate(["de 305", "en 21016"]).results()]
    assert texts == ["dreihundertfünf", "twenty-one thousand and sixteen"]
