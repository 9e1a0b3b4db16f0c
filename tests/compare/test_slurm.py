"""Comparisons as Slurm job arrays, with a stand-in for sbatch that runs the tasks here."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from full_disk import limited_files

from clusterformer.cli.main import main
from clusterformer.compare.slurm import submit, write_script

SBATCH = r"""#!/bin/bash
# runs each task of the array, one after the other, as Slurm would
echo "Submitted batch job 7"
for task in $(grep -- --array "$1" | sed 's/.*--array=//; s/,/ /g'); do
  SLURM_ARRAY_TASK_ID=$task bash "$1" > "log-$task" 2>&1
done
"""
SRUN = """#!/bin/bash
shift
exec "$@"
"""


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, **programs: str) -> None:
    folder.mkdir()
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


def test_the_script_trains_the_shard_of_its_task(tmp_path: Path) -> None:
    script = write_script(tmp_path / "a b", ["x.yaml"], [1, 3], 4, "--time=1:00:00 --gres=gpu:1")
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    lines = script.read_text().splitlines()
    directives = [shlex.split(line)[1] for line in lines if line.startswith("#SBATCH")]
    assert {"--array=1,3", "--time=1:00:00", "--gres=gpu:1", "--requeue"} <= set(directives)
    assert f"--output={tmp_path / 'a b' / 'slurm'}/%A_%a.txt" in directives
    assert shlex.split(lines[-1])[2:] == [
        *(sys.executable, "-m", "clusterformer", "compare", "x.yaml"),
        *("--shard", "$SLURM_ARRAY_TASK_ID/4"),
    ]


def test_a_comparison_in_the_current_folder_has_its_name(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = write_script(Path(), ["x.yaml"], [1], 1, "")
    assert f"#SBATCH --job-name={tmp_path.name}" in script.read_text().splitlines()


def test_a_refusal_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["compare", "quickstart", "--slurm", "2", f"--out={tmp_path / 'out'}"]) == 2
    assert "no sbatch on this machine; the job script is" in capsys.readouterr().err
    table = ["--metric=test/loss", "--baseline=full attention", "--title=A title"]
    assert main(["compare", "quickstart", "--slurm", "2", f"--out={tmp_path / 'out'}", *table]) == 2
    assert shlex.join(table) in (tmp_path / "out" / "array.sh").read_text()
    capsys.readouterr()
    assert main(["compare", "quickstart", f"--out={tmp_path / 'new'}", "--baseline=nobody"]) == 2
    assert "no row 'nobody'; there is" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()  # said before any training
    assert main(["compare", "quickstart", "--sbatch=--time=1"]) == 2
    assert "--sbatch needs --slurm" in capsys.readouterr().err
    install(tmp_path / "bin", monkeypatch, sbatch="#!/bin/sh\necho no such partition >&2\nexit 1\n")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}/usr/bin{os.pathsep}/bin")
    with pytest.raises(Exception, match=r"sbatch refused .*array.sh: no such partition"):
        submit(tmp_path / "out" / "array.sh")


def test_on_a_full_disk_the_earlier_script_and_sweep_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, sweep = tmp_path / "plan.yaml", tmp_path / "sweep.yaml"
    plan.write_text(yaml.safe_dump({"config": "partner.yaml", "rows": {"a": {}}}))
    command = ["compare", str(plan), "--sweep", str(sweep)]
    assert main(command) == 0
    script = write_script(tmp_path, ["x.yaml"], [1], 1, "")
    before = script.read_text(), sweep.read_text()
    with limited_files(100):
        assert main(command) == 2
        with pytest.raises(OSError, match="File too large"):
            write_script(tmp_path, ["x.yaml"], [1], 1, "")
    assert f"{sweep}: File too large" in capsys.readouterr().err
    assert (script.read_text(), sweep.read_text()) == before


@pytest.mark.slow
def test_the_array_trains_every_run_and_what_failed_is_submitted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    options = {
        "data.num_tokens": 16, "data.batch_size": 2, "data.epoch_steps": 2, "data.valid_texts": 2,
        "data.test_texts": 2, "model.d_model": 8, "model.d_ff": 8, "trainer.max_steps": 2,
        "model.attention.num_clusters": 2, "trainer.enable_progress_bar": False,
    }  # fmt: skip
    plan = {"config": "partner.yaml", "options": options, "rows": {"a": {}}, "seeds": [0, 1, 2]}
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text(yaml.safe_dump(plan))
    install(tmp_path / "bin", monkeypatch, sbatch=SBATCH, srun=SRUN)
    command = ["compare", "plan.yaml", "--out", "out", "--slurm", "2"]
    assert main(command) == 0
    assert "Submitted batch job 7\n2 of 2 tasks" in capsys.readouterr().out
    results = sorted(Path("out").glob("*/*/*/*/*/results.json"))
    assert len(results) == 3
    assert (Path("out") / "index.html").exists()
    assert main(command) == 0
    assert "all 3 runs are finished" in capsys.readouterr().out
    results[1].unlink()
    assert main(command) == 0
    assert "1 of 2 tasks" in capsys.readouterr().out
    assert results[1].exists()
