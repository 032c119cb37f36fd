"""Idle threads of one model do not slow down another."""

from pathlib import Path

from support.small_configs import SMALL_CONFIGS

import specc


def test_idle_threads_spin_for_a_millisecond(tmp_path: Path) -> None:
    specc.compile("t5", tmp_path / "out", init=0, set=SMALL_CONFIGS["t5"], graphs=["step"])
    writer = specc.load(tmp_path / "out").generator
    assert writer
    decoder_session = writer.create_decoder_session(
        writer.input_signature.prepare(
            {"source": [[1, 2]], writer.input_signature.sequence_input: [[0]]}
        )
    )
    session = decoder_session.session.session
    options = session.get_session_options()
    told = options.get_session_config_entry("session.intra_op.spin_duration_us")
    assert told == "1000"
