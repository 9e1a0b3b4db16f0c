"""Run directories of trainings that never ran, as `fit` leaves them."""

import json
from pathlib import Path

import yaml

CONFIG = {
    "seed_everything": 0,
    "model": {"attention": {"class_path": "clusterformer.attention.FullAttention"}, "lr": 0.1},
    "data": {"class_path": "clusterformer.tasks.Partner", "init_args": {"name": "partner"}},
}
OUTCOME = {
    "results": {"test/accuracy": 0.75, "val/accuracy": 0.5},
    "monitor": "val/accuracy",
    "mode": "max",
    "steps": 20,
    "epochs": 2,
    "seconds": 10.0,
    "seconds_a_step": 0.5,
    "parameters": 1000,
    "peak_mib": 100.0,
}
METRICS = "step,train/loss,val/accuracy\n9,0.9,\n9,,0.25\n19,0.5,\n19,,0.5\n"


def write_run(folder: Path, lr: float = 0.1) -> Path:
    """Write a finished run."""
    folder.mkdir(parents=True)
    config = {**CONFIG, "model": {**CONFIG["model"], "lr": lr}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "results.json").write_text(json.dumps(OUTCOME))
    (folder / "metrics.csv").write_text(METRICS)
    environment = {"command": "clusterformer fit", "commit": "abc", "wandb_id": "a"}
    (folder / "environment.json").write_text(json.dumps(environment))
    return folder
