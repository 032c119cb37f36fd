"""Aims of `make measure` that were reached once remain reached."""

from support import measure

NOT_YET = {"lines", "tokens"}
"""Rows whose aim has never been reached. The set may only shrink."""


def test_reached_aims_remain_reached() -> None:
    rows = {row.name: row for row in measure.build_rows()}
    reached = {name for name, row in rows.items() if row.is_reached}
    missed = [
        line
        for name in rows.keys() - reached - NOT_YET
        for line in (str(rows[name]), *rows[name].detail)
    ]
    assert not missed, "\n".join(missed)
    assert not reached & NOT_YET, "take what is reached out of NOT_YET"


def test_planted_names_are_counted(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(measure, "ROOT", tmp_path)
    for module in ("a/held.py", "b/held.py"):
        path = tmp_path / module
        path.parent.mkdir()
        path.write_text("def told(): ...\ndef lower_conv(): ...\n")
    paths = sorted(tmp_path.rglob("*.py"))
    values = {row.name: row.value for row in measure.build_name_rows(paths)}
    assert values == {
        "public functions of one word, %": 50,
        "public functions with a homonym, %": 100,
        "files that share a basename, %": 100,
        "modules named by no noun": 2,
    }
