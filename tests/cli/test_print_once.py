"""An error under torchrun is one line, whether all processes meet it or only one."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import os, sys, time
from clusterformer.cli.main import main
ended, meeting = sys.argv[1:]
if os.environ["RANK"] not in meeting:
    time.sleep(600)  # torchrun ends it
code = main(["fti"])
open(os.path.join(ended, os.environ["RANK"]), "w").close()
while len(os.listdir(ended)) < len(meeting):  # else torchrun might end one before its line
    time.sleep(0.01)
sys.exit(code)
"""


@pytest.mark.slow
@pytest.mark.parametrize("meeting", ["01", "1"])
def test_an_error_is_one_line_whichever_processes_meet_it(meeting: str, tmp_path: Path) -> None:
    script, ended = tmp_path / "script.py", tmp_path / "ended"
    script.write_text(SCRIPT)
    ended.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run([*torchrun, script, ended, meeting], capture_output=True, text=True)
    assert done.stderr.count("clusterformer: error: no command 'fti'; did you mean fit?\n") == 1
    assert "exitcode  : 2 " in done.stderr
