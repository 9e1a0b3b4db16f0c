"""`clusterformer export`: a trained model as a folder for others."""

from __future__ import annotations

from clusterformer.errors import InputError
from clusterformer.wording import did_you_mean

HELP = """
usage: clusterformer export RUN FOLDER [options]

Write a trained model as a folder: safetensors, tokenizer, configuration and a model card, which is
README.md. transformers loads classifiers from it; clusterformer.load(FOLDER) loads every model. The
card says which. Neither the run nor the pretrained model that it began with is needed any more.

  RUN               run directory (its best checkpoint), or a .ckpt file
  FOLDER            folder to make
  --average N       mean of the weights after the last N validations, or best:N
  --licence NAME    licence of the weights, such as apache-2.0 (default: the pretrained model's)
  --push USER/NAME  upload the folder to huggingface.co too; log in before with `hf auth login`
  --trust PACKAGE   allow the checkpoint to import a class of that package

examples:
  clusterformer export runs/mr-pretrained/1 my-model
  clusterformer export runs/mr/1 my-model --licence apache-2.0 --push me/my-model
"""

OPTIONS = ("--average", "--licence", "--push", "--trust")


def run(arguments: list[str]) -> None:
    """Write the folder, say who loads it, upload it."""
    from clusterformer.api import import_tasks
    from clusterformer.cli.options import pop_option
    from clusterformer.export.folder import export, push
    from clusterformer.working_folder import import_from_working_folder

    average, arguments = pop_option(arguments, "--average")
    licence, arguments = pop_option(arguments, "--licence")
    name, arguments = pop_option(arguments, "--push")
    trust, arguments = pop_option(arguments, "--trust", several=True)
    for argument in arguments:
        if argument.startswith("-"):
            option = argument.partition("=")[0]
            hint = did_you_mean(option, OPTIONS) or "--help lists all"
            if option in ("--checkpoint", "--out"):  # as other commands have them
                hint = "it is clusterformer export RUN FOLDER"
            raise InputError(f"no option {option}; {hint}")
    if len(arguments) != 2:
        found = f"{len(arguments)} arguments"
        raise InputError(f"give RUN and FOLDER, got {found}; clusterformer export --help")
    import_tasks()
    import_from_working_folder()
    packages = tuple(trust.split(",")) if trust else ()
    exported = export(*arguments, average=average, licence=licence, trust=packages)
    also = "transformers and " if exported.for_transformers else ""
    print(f"{exported.folder}: loads with {also}clusterformer.load; README.md says how")
    if name:
        print(f"uploaded to {push(exported.folder, name)}")
