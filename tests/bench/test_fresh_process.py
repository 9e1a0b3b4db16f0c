"""The fresh process of a measurement ends with the command, without a word of its own."""

import os
import signal
import time

import pytest
from endless import endless

from clusterformer.bench.fresh_process import iterate_in_fresh_process


@pytest.mark.slow
def test_an_interrupt_ends_the_process_in_silence(capfd: pytest.CaptureFixture[str]) -> None:
    rows = iterate_in_fresh_process(endless)
    measuring = next(rows)
    begun = time.monotonic()
    os.kill(measuring, signal.SIGINT)  # Ctrl-C reaches every process of a terminal
    with pytest.raises(KeyboardInterrupt):
        rows.throw(KeyboardInterrupt)
    with pytest.raises(ProcessLookupError):
        os.kill(measuring, 0)
    assert time.monotonic() - begun < 300
    assert capfd.readouterr().err == ""
