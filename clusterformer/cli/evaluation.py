"""Loading and measuring of a trained model, for the commands on a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from clusterformer.api import TrainedModel
from clusterformer.cli.options import Options, pop_option
from clusterformer.errors import InputError, making
from clusterformer.training.progress import formatted
from clusterformer.training.runs import first_process
from clusterformer.training.saved import open_saved
from clusterformer.working_folder import import_from_working_folder


def load_model(arguments: list[str], device: str | None = None) -> tuple[TrainedModel, Options]:
    """Load the model after `--checkpoint`; the other arguments change its configuration.

    Args:
        arguments: Command line, without the command.
        device: Device of the model, if the command line names none.

    Raises:
        InputError: without `--checkpoint`, and as `clusterformer.load`.
    """
    path, arguments = pop_option(arguments, "--checkpoint")
    average, arguments = pop_option(arguments, "--average")
    trust, arguments = pop_option(arguments, "--trust")
    named, arguments = pop_option(arguments, "--device")
    if path is None:
        raise InputError("give --checkpoint, a run directory or a .ckpt file")
    import_from_working_folder()
    saved = open_saved(path, trust.split(",") if trust else ())
    options = Options(arguments, fitting=False, base=saved.config)
    model = TrainedModel(
        saved, options.model, options.task, average=average, device=named or device
    )
    return model, options


def evaluate(arguments: list[str], stage: Literal["validate", "test"]) -> None:
    """Measure a trained model and print `name<TAB>value` for each measure."""
    folder, arguments = pop_option(arguments, "--report")
    model, options = load_model(arguments, "cpu")
    trainer = options.make_trainer()
    measure = trainer.validate if stage == "validate" else trainer.test
    with making("options"):
        [results] = measure(model.module, model.task, verbose=False)
    if first_process():
        for name, value in sorted(results.items()):
            print(f"{name}\t{formatted(name, value)}")
        if findings := model.module.findings:
            for name, value in findings.measures().items():
                print(f"{stage}/{name}\t{value:.4f}")
            findings.warn()
            if folder:
                findings.write(Path(folder))
        for name, signature in model.task.signatures().items():
            print(f"{name}\t{signature}")
