"""The list of a comparison's runs, before any is trained, and what they miss."""

import re
from pathlib import Path

import pytest
import yaml
from toy_runs import write_run

from clusterformer.cli.main import main
from clusterformer.compare.jobs import Job
from clusterformer.compare.plan import read_plan


def test_clusters_of_points_and_simple_methods_are_listed(tmp_path: Path, capfd) -> None:
    path = tmp_path / "points.yaml"
    rows = {"a network": {}, "k-means": {"method": "kmeans"}}
    content = {"config": "mnist.yaml", "options": {"data.name": "digits"}, "rows": rows}
    path.write_text(yaml.safe_dump(content))
    assert main(["compare", str(path), "--dry-run"]) == 0
    network, method, _ = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"to do +[\d,]+ parameters  a network, seed 0", network)
    assert re.fullmatch(r"to do +simple method  k-means, seed 0", method)


def test_rows_of_one_data_set_are_listed_after_one_reading(tmp_path: Path, capfd, caplog) -> None:
    texts = "".join(f"{i % 2}\tone two three {i}\n" for i in range(40))
    (tmp_path / "texts.tsv").write_text("label\ttext\n" + texts)
    path = tmp_path / "texts.yaml"
    rows = {"wide": {"model.d_model": 32}, "small": {"model.d_model": 16}}
    rows["shorter texts"] = {**rows["small"], "data.max_length": 2}
    options = {"data.train": str(tmp_path / "texts.tsv"), "data.max_length": 3}
    content = {"config": "classify.yaml", "options": options, "rows": rows}
    path.write_text(yaml.safe_dump(content, sort_keys=False))
    assert main(["compare", str(path), "--dry-run"]) == 0
    wide, small, shorter, _ = capfd.readouterr().out.splitlines()
    assert len({line.split()[2] for line in (wide, small)}) == 2
    assert small.split()[2] == shorter.split()[2]
    told = "\n".join(caplog.messages)
    assert told.count("train: 32 of 32 texts are longer than max_length 3") == 1
    assert told.count("train: 32 of 32 texts are longer than max_length 2") == 1


def test_each_choice_has_its_own_size(tmp_path: Path, capfd) -> None:
    path = tmp_path / "points.yaml"
    content = {"config": "mnist.yaml", "options": {"data.name": "digits"}}
    content["choose"] = {"data.n_clusters": [10, 20]}
    path.write_text(yaml.safe_dump(content))
    assert main(["compare", str(path), "--dry-run"]) == 0
    ten, twenty, _ = capfd.readouterr().out.splitlines()
    assert int(twenty.split()[2].replace(",", "")) > int(ten.split()[2].replace(",", ""))


def test_seeds_and_choices_of_a_cell_share_a_line(tmp_path: Path, capfd) -> None:
    path = tmp_path / "points.yaml"
    content = {"config": "mnist.yaml", "options": {"data.name": "digits"}, "seeds": [0, 1, 2]}
    content |= {"rows": {"a": {}, "b": {}}, "choose": {"model.lr": [0.1, 0.2]}}
    path.write_text(yaml.safe_dump(content))
    jobs = [Job(tmp_path / "out", planned) for planned in read_plan(path).runs]
    for job in jobs[:3]:  # seed 0: a, a, b
        write_run(job.folder / "points" / "1")
    assert main(["compare", str(path), "--dry-run", f"--out={tmp_path / 'out'}"]) == 0
    a, b, other_size, last = capfd.readouterr().out.splitlines()
    assert re.fullmatch(r"2 of 6 +[\d,]+ parameters  a: seeds 0, 1, 2; 2 choices", a)
    assert re.fullmatch(r"1 of 3 +[\d,]+ parameters  b, lr=0.1: seeds 0, 1, 2", b)
    assert re.fullmatch(r"to do +[\d,]+ parameters  b, lr=0.2: seeds 0, 1, 2", other_size)
    assert last == "3 of 12 are finished; 9 runs to train, about 1 min 30 s"
    part = ["--dry-run", "--jobs", "3", "--shard", "1/2"]  # choice 0.1, of which two are finished
    assert main(["compare", str(path), *part, f"--out={tmp_path / 'out'}"]) == 0
    *_, last = capfd.readouterr().out.splitlines()
    assert last == "2 of 6 are finished; 4 runs to train, about 13 s"


@pytest.mark.parametrize("option", ["--dry-run", "--slurm=2"])
def test_runs_of_other_options_are_not_listed_as_finished(
    option: str, tmp_path: Path, capfd
) -> None:
    path = tmp_path / "points.yaml"
    content = {"config": "mnist.yaml", "options": {"data.name": "digits"}}
    path.write_text(yaml.safe_dump(content))
    [planned] = read_plan(path).runs
    Job(tmp_path, planned).record()
    path.write_text(yaml.safe_dump({**content, "options": {"data.name": "mnist"}}))
    assert main(["compare", str(path), "--out", str(tmp_path), option]) == 2
    told = capfd.readouterr()
    assert "holds a run of other arguments, --data.name=digits instead of" in told.err
    assert not told.out
    assert not (tmp_path / "array.sh").exists()


def test_word_vectors_that_are_to_be_trained_are_told_before_any_run(
    tmp_path: Path, capfd, monkeypatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "texts.tsv").write_text("label\ttext\n" + "0\tone two\n1\tthree four\n" * 20)
    options = {"data.train": str(tmp_path / "texts.tsv"), "data.vectors": "trained"}
    path = tmp_path / "texts.yaml"
    path.write_text(yaml.safe_dump({"config": "classify.yaml", "options": options}))
    assert main(["compare", str(path), "--dry-run"]) == 0
    told = capfd.readouterr().err
    assert "vectors trained: no file" in told
    assert "`prepare vectors` makes it; these runs will fail without them" in told


def test_a_simple_method_is_not_said_to_need_vectors_or_a_precision(
    tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda: False)
    (tmp_path / "texts.tsv").write_text("label\ttext\n" + "0\tone two\n1\tthree four\n" * 20)
    options = {
        "data.train": str(tmp_path / "texts.tsv"),
        "data.vectors": "trained",
        "trainer.precision": "bf16-mixed",
        "method": "TF-IDF + linear SVM",
    }
    path = tmp_path / "texts.yaml"
    path.write_text(yaml.safe_dump({"config": "classify.yaml", "options": options}))
    assert main(["compare", str(path), "--dry-run"]) == 0
    assert not capfd.readouterr().err


def test_a_precision_that_is_slow_on_this_machine_is_told_once(
    tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("torch.ops.mkldnn._is_mkldnn_bf16_supported", lambda: False)
    path = tmp_path / "points.yaml"
    for precision, count in (("32-true", 0), ("bf16-mixed", 1)):
        options = {"data.name": "digits", "trainer.precision": precision}
        content = {"config": "mnist.yaml", "options": options, "seeds": [0, 1]}
        path.write_text(yaml.safe_dump({**content, "rows": {"a": {}, "b": {"model.lr": 0.1}}}))
        assert main(["compare", str(path), "--dry-run"]) == 0
        told = capfd.readouterr().err
        assert told.count("trainer.precision bf16-mixed is many times slower") == count
