"""A trained run as a folder for others, and its way to huggingface.co."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from clusterformer.data.pretrained import find_pretrained
from clusterformer.errors import InputError, missing
from clusterformer.export.card import UNKNOWN, Card
from clusterformer.export.modeling import (
    AUTO_MAP,
    Rebuilt,
    is_row_classifier,
    rebuild,
    write_code,
)
from clusterformer.export.tokenizer_files import tokenizer_files
from clusterformer.models.pretrained import PretrainedEncoder
from clusterformer.task import Task
from clusterformer.tasks.labelling import Labelling
from clusterformer.tasks.similarity import Similarity
from clusterformer.training.exported import is_exported, write_exported
from clusterformer.training.runs import Run
from clusterformer.training.saved import Saved, averaged, open_saved
from clusterformer.whole_files import whole_folder


class Exported(NamedTuple):
    """An exported folder, and whether transformers loads it."""

    folder: Path
    for_transformers: bool


def export(
    run: str | Path,
    folder: str | Path,
    *,
    average: str | None = None,
    licence: str | None = None,
    trust: tuple[str, ...] = (),
) -> Exported:
    """Write a trained model as a folder: safetensors, tokenizer, configuration, model card.

    The folder appears whole or not at all.

    Args:
        run: Run directory (its best checkpoint), or a `.ckpt` file.
        folder: Folder to make; it must not be there, or be empty.
        average: Mean of kept weights, as `clusterformer.load` has it.
        licence: Licence of the weights, such as "apache-2.0"; that of the pretrained model by
            default.
        trust: Modules or packages that the checkpoint may import.

    Raises:
        InputError: if the run cannot be read, or the folder holds something.
    """
    folder = unused_folder(folder)
    saved = open_saved(run, trust)
    if average is not None:
        saved = saved._replace(weights=averaged(run, average, saved.mode))
    rebuilt = rebuild(saved)
    with whole_model(folder) as draft:
        ours = is_row_classifier(rebuilt) and _has_tokenizer(rebuilt.task)
        _write(draft, saved, rebuilt, ours)
        title = folder.resolve().name
        card = _card(run, title, saved, rebuilt, ours, licence, is_average=average is not None)
        (draft / "README.md").write_text(card.text(), encoding="utf-8")
    return Exported(folder, ours)


def unused_folder(folder: str | Path) -> Path:
    """Return the path of a folder that may be made.

    Raises:
        InputError: if it holds something, is a file, or has no name of its own, as "." has none.
    """
    folder = Path(folder).expanduser()
    if folder.name in ("", ".."):
        raise InputError(f"{folder}: has no name to be made by; give another folder")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"{folder}: already there and not empty; give another folder")
    return folder


@contextmanager
def whole_model(folder: Path) -> Iterator[Path]:
    """Yield a draft of a model's folder, as `whole_folder`; its weights are readable as the rest.

    Raises:
        InputError: if safetensors cannot write, such as on a full disk.
        OSError: if anything else cannot be written; it names the folder.
    """
    from safetensors import SafetensorError

    try:
        with whole_folder(folder) as draft:
            yield draft
            for weights in draft.glob("*.safetensors"):  # written for their owner alone
                shutil.copymode(draft / "config.json", weights)
    except SafetensorError as error:  # its writer's name for an error of the system
        raise InputError(f"{folder}: cannot be written: {error}") from error


def _has_tokenizer(task: Task) -> bool:
    """Tell whether transformers can make the rows, without special tokens of our own."""
    if not isinstance(task, Labelling):
        return False
    return task.rows.pretrained is not None or not (task.joint or task.rows.framed)


def _write(folder: Path, saved: Saved, rebuilt: Rebuilt, for_transformers: bool) -> None:
    write_exported(folder, saved)
    config: dict[str, Any] = {
        "model_type": "clusterformer",
        "attention": _attention(saved, rebuilt),
        "task": saved.kind,
    }
    task = rebuilt.task
    if for_transformers and isinstance(task, Labelling):
        labels = saved.state["labels"]
        config |= {
            "architectures": ["ClusterFormerForSequenceClassification"],
            "auto_map": AUTO_MAP,
            "id2label": dict(enumerate(labels)),
            "label2id": {label: number for number, label in enumerate(labels)},
            "dtype": "float32",
        }
        if isinstance(task, Similarity):  # else pipelines squash the one number into 0..1
            config["problem_type"] = "regression"
        files = tokenizer_files(task.tokenizer, task.rows.max_length, pairs=task.joint)
        for name, text in files.items():
            (folder / name).write_text(text, encoding="utf-8")
        write_code(folder)
    text = json.dumps(config, ensure_ascii=False, indent=2)
    (folder / "config.json").write_text(f"{text}\n", encoding="utf-8")


def _attention(saved: Saved, rebuilt: Rebuilt) -> dict[str, Any]:
    """Describe the mechanism that a network has: a pretrained model may have been saved with it."""
    chosen: dict[str, Any] = saved.config["model"]["attention"]
    encoders = (part for part in rebuilt.network.modules() if isinstance(part, PretrainedEncoder))
    own = next((getattr(x.model.config, "clusterformer", None) for x in encoders), None)
    if own is None:
        return chosen
    same = str(chosen["class_path"]).rpartition(".")[2] == own["mechanism"]
    path = chosen["class_path"] if same else f"clusterformer.attention.{own['mechanism']}"
    return {"class_path": path, "init_args": own["options"]}


def _card(
    run: str | Path,
    title: str,
    saved: Saved,
    rebuilt: Rebuilt,
    for_transformers: bool,
    licence: str | None,
    *,
    is_average: bool,
) -> Card:
    results, environment = None, None
    try:
        opened = Run.open(run)
        is_tested = opened.finished and opened.chosen.resolve() == saved.path.resolve()
        results = opened.results if is_tested and not is_average else None
        written = opened.folder / "environment.json"
        environment = json.loads(written.read_text(encoding="utf-8")) if written.exists() else None
    except InputError:
        pass  # a checkpoint file that was moved out of its run
    labels = saved.state["labels"] if isinstance(rebuilt.task, Labelling) else []
    licence = licence or _licence(saved.config["model"].get("pretrained")) or UNKNOWN
    model = {**saved.config["model"], "attention": _attention(saved, rebuilt)}
    return Card(
        title,
        {**saved.config, "model": model},
        labels,
        for_transformers,
        licence,
        results,
        environment,
        is_exported(saved.path),
        rebuilt.task.usage,
    )


def _licence(pretrained: str | None) -> str | None:
    """Read the licence of a pretrained model in its card, if that lies on this machine."""
    try:
        card = find_pretrained(pretrained) / "README.md" if pretrained else None
    except InputError:
        return None
    lines = card.read_text(encoding="utf-8").splitlines() if card and card.exists() else []
    found = (line.partition(":") for line in lines[:60])
    return next((value.strip() for key, _, value in found if key == "license"), None)


def push(folder: Path, name: str) -> str:
    """Upload an exported folder to huggingface.co; return its address.

    Raises:
        InputError: if there is no client, no network, no account, or no such right.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise missing("--push needs huggingface_hub", "pretrained") from None
    try:
        api = HfApi()
        address = api.create_repo(name, exist_ok=True)
        api.upload_folder(folder_path=folder, repo_id=name)
    except Exception as error:  # of the client's HTTP library
        said = " ".join(str(error).split())[:200]
        raise InputError(
            f"--push {name}: {said}; the folder {folder} is written; log in with `hf auth login`"
        ) from error
    return str(address)
