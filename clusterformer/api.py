"""Trained models for Python: `clusterformer.load(run)` returns one, ready to use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import Any, NoReturn, TypeVar, overload

import torch
from torch import nn

import clusterformer.tasks
from clusterformer.decoding import Search
from clusterformer.devices import best_device, find_device
from clusterformer.errors import InputError, require_unicode
from clusterformer.generation import Sampling, TextGenerator
from clusterformer.input_lines import input_lines
from clusterformer.models.language_model import LanguageModel
from clusterformer.module import ClusterFormer
from clusterformer.task import Task
from clusterformer.tasks.labelling import Labelling
from clusterformer.tasks.language_modeling import LanguageModeling
from clusterformer.tasks.similarity import Similarity
from clusterformer.tasks.translation import Translation
from clusterformer.training.saved import Saved, averaged, fill, make, open_saved
from clusterformer.training.saved_clustering import is_clustering, open_clustering

Record = TypeVar("Record")
Predictions = Callable[[nn.Module, Any], list[Record]]
"""Makes the records of a batch with the network."""


def load(
    run: str | Path,
    *,
    average: str | int | None = None,
    device: str | torch.device | None = None,
    trust: Sequence[str] = (),
) -> TrainedModel:
    """Load a trained model, from its checkpoint alone.

    Examples:
        >>> model = clusterformer.load("runs/mr/1")
        >>> model.predict(["a fine film", "a dull film"])
        [{'label': '1', 'probability': 0.97}, {'label': '0', 'probability': 0.97}]

    Args:
        run: Directory of a run of `fit` or `cluster`, `.ckpt` file, or folder of an export.
        average: N for the mean of the weights after the last N validations, "best:N" for the best
            N, of a training with `--keep N`; None for the weights of the checkpoint.
        device: "cpu", "cuda" or a GPU such as "cuda:1"; None for cuda where there is one.
        trust: Modules or packages that the checkpoint may import, such as "mypackage". Those that
            your program has already imported, and clusterformer itself, need no trust.

    Raises:
        InputError: if there is no such run, the file is no whole checkpoint of `fit`, it names a
            class that is not trusted, or the device is not there.
    """
    import_tasks()
    path = Path(run)
    saved = open_clustering(path) if is_clustering(path) else open_saved(path, trust)
    return TrainedModel(saved, *make(saved), average=average, device=device)


def import_tasks() -> None:
    """Import every task of ours, so that its class is known by name."""
    for module in walk_packages(clusterformer.tasks.__path__, "clusterformer.tasks."):
        import_module(module.name)


class TrainedModel:
    """A trained model; `load` makes it.

    `predict` works for every task that reads text or points. `translate` is for runs of
    Translation, `generate` and `stream` for runs of LanguageModeling.

    Attributes:
        path: The checkpoint file.
        task: The task, as it was trained: labels, tokenizer and so on.
        module: The LightningModule, for `Trainer.validate` and `Trainer.test`.
        network: The network, a plain `nn.Module` in evaluation mode.
        config: Sections `model` and `data` of the configuration, and `seed_everything`.
    """

    def __init__(
        self,
        saved: Saved,
        module: ClusterFormer,
        task: Task,
        *,
        average: str | int | None = None,
        device: str | torch.device | None = None,
    ) -> None:
        kind = type(task).__name__
        if saved.kind != kind:
            raise InputError(f"{saved.path}: a checkpoint of {saved.kind}, not of {kind}")
        place = best_device() if device is None else find_device(device)
        self.path, self.config, self.task = saved.path, saved.config, task
        if average is not None:
            saved = saved._replace(weights=averaged(saved.path, str(average), saved.mode))
        self.network = fill(saved, module, task)
        self.module = module.to(place).eval()

    def predict(
        self, inputs: Iterable[Any], *, probabilities: bool = False
    ) -> list[dict[str, Any]]:
        """Return the task's record of each input, in their order.

        Args:
            inputs: Texts; pairs of texts; points, (P, F), for Clustering; paths of recordings.
            probabilities: Add `"probabilities"`, that of every label, most probable first; for
                tasks that give one of several labels.

        Returns:
            Records, such as `{"label": "1", "probability": 0.97}` of a classifier,
            `{"cluster": 3, "membership": 0.8}` of a clustering. Of a text that is empty a
            classifier's values are None.

        Raises:
            InputError: if the task cannot read an input; the message says which. Also for
                `probabilities` of a task without labels.
        """
        lines = input_lines(self.task, inputs)
        if probabilities:
            records = self._with_probabilities(lines)
        else:
            records = self._records(lines, self.task.predictions)
        if not isinstance(self.task, Labelling):
            return records
        return [
            record if line.strip() else dict.fromkeys(record)
            for line, record in zip(lines, records, strict=True)
        ]

    def _with_probabilities(self, lines: list[str]) -> list[dict[str, Any]]:
        if not isinstance(self.task, Labelling) or isinstance(self.task, Similarity):
            raise InputError(
                f"{self.path}: probabilities are for tasks with labels, this is a run of "
                f"{type(self.task).__name__}"
            )
        return [
            {"label": label, "probability": each[label], "probabilities": each}
            for each in self._records(lines, self.task.all_probabilities)
            for label in [next(iter(each))]
        ]

    def _records(self, lines: list[str], predictions: Predictions[Record]) -> list[Record]:
        for number, line in enumerate(lines, start=1):
            self._check(number, line)
        records: list[Record] = []
        for batch in self.task.text_dataloader(lines) if lines else ():
            with torch.inference_mode():
                moved = self.module.transfer_batch_to_device(batch, self.module.device, 0)
                records += predictions(self.network, moved)
        return records

    def _check(self, number: int, line: str) -> None:
        try:
            if self.task.reads != "recording":  # whose path may be any bytes
                require_unicode(line)
            self.task.check_text(line)
        except InputError as error:
            raise InputError(f"input {number}: {error}") from error

    @overload
    def translate(
        self, texts: Iterable[str], *, beam: int | None = ..., length_penalty: float | None = ...
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        beam: int | None = ...,
        length_penalty: float | None = ...,
        nbest: int,
    ) -> list[list[dict[str, Any]]]: ...

    def translate(
        self,
        texts: Iterable[str],
        *,
        beam: int | None = None,
        length_penalty: float | None = None,
        nbest: int | None = None,
    ) -> list[str] | list[list[dict[str, Any]]]:
        """Translate sentences.

        Examples:
            >>> clusterformer.load("runs/multi30k/1").translate(["ein hund läuft am strand ."])
            ['a dog runs on the beach .']

        Args:
            texts: Sentences.
            beam: Hypotheses followed, 1 for greedy decoding; None as the model was trained.
            length_penalty: Above 1 favours long translations, below 1 short ones.
            nbest: Translations of each sentence.

        Returns:
            The translation of each sentence, of an empty one ""; with `nbest` a list of the best
            for each, best first, `{"translation": ..., "score": ...}`.

        Raises:
            InputError: if this is no run of Translation, or an option is out of range.
        """
        if not isinstance(self.task, Translation):
            self._refuse("translate", Translation)
        usual = self.task.search
        search = Search(
            usual.beam if beam is None else beam,
            usual.length_penalty if length_penalty is None else length_penalty,
            1 if nbest is None else nbest,
        )
        lines = input_lines(self.task, texts)
        found = self._records(lines, partial(self.task.translations, search=search))
        found = [
            records if line.strip() else [{"translation": "", "score": 0.0}]
            for line, records in zip(lines, found, strict=True)
        ]
        return [records[0]["translation"] for records in found] if nbest is None else found

    @overload
    def generate(
        self,
        prompt: str = ...,
        *,
        samples: None = ...,
        tokens: int = ...,
        temperature: float = ...,
        top_k: int | None = ...,
        top_p: float = ...,
        stop: str | None = ...,
        seed: int = ...,
    ) -> str: ...

    @overload
    def generate(
        self,
        prompt: str = ...,
        *,
        samples: int,
        tokens: int = ...,
        temperature: float = ...,
        top_k: int | None = ...,
        top_p: float = ...,
        stop: str | None = ...,
        seed: int = ...,
    ) -> list[str]: ...

    def generate(
        self,
        prompt: str = "",
        *,
        samples: int | None = None,
        tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        stop: str | None = None,
        seed: int = 0,
    ) -> str | list[str]:
        """Continue a text; `stream` gives the same, as it is drawn.

        Args:
            prompt: Beginning of the text.
            samples: Number of continuations; None for one.
            tokens, temperature, top_k, top_p, stop, seed: Options of `stream`.

        Returns:
            The continuation, without the prompt; with `samples` a list of them.
        """
        drawn = self.generator.samples(
            prompt,
            Sampling(tokens, temperature, top_k, top_p, stop, seed),
            number=1 if samples is None else samples,
        )
        texts = ["".join(text) for text in drawn]
        return texts[0] if samples is None else texts

    def stream(
        self,
        prompt: str = "",
        *,
        tokens: int = 200,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float = 1.0,
        stop: str | None = None,
        seed: int = 0,
    ) -> Iterator[str]:
        """Continue a text, some characters at a time.

        Args:
            prompt: Beginning of the text.
            tokens: Maximum number of tokens to draw.
            temperature: Divisor of the logits; 0 always takes the most probable token.
            top_k: Number of the most probable tokens that are drawn from; None for all.
            top_p: Probability, in (0, 1], of the most probable tokens that are drawn from.
            stop: Text before which the continuation ends; None for none.
            seed: Seed of the draws; the same one gives the same text.

        Raises:
            InputError: if this is no run of LanguageModeling, or an option is out of range.
        """
        return self.generator.stream(
            prompt, Sampling(tokens, temperature, top_k, top_p, stop, seed)
        )

    @cached_property
    def generator(self) -> TextGenerator:
        """Network and tokenizer of a language model; `stream` and `generate` use it.

        Raises:
            InputError: if this is no run of LanguageModeling.
        """
        if not isinstance(self.task, LanguageModeling):
            self._refuse("generate", LanguageModeling)
        assert isinstance(self.network, LanguageModel)
        return TextGenerator(self.network, self.task.tokenizer)

    def _refuse(self, method: str, wanted: type[Task]) -> NoReturn:
        raise InputError(
            f"{self.path}: {method} needs a run of {wanted.__name__}, this is one of "
            f"{type(self.task).__name__}; use predict"
        )
