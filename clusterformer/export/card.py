"""The card of an exported model: what it is, its data, its figures, how to load it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from clusterformer.data.prepare.catalogue import published_sets
from clusterformer.training.mechanism_defaults import MECHANISMS

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Card:
    """Content of a model card.

    Attributes:
        title: Name of the model.
        config: Sections `model` and `data` of the run's configuration, and its seed.
        labels: Labels in the order of their scores.
        for_transformers: Whether transformers loads the folder.
        licence: Licence of the weights, by its name at huggingface.co.
        results: Outcome of the training, as results.json has it; None if it is not known, or not of
            these weights.
        environment: What the training ran on, as environment.json has it; None likewise.
        from_export: Whether the model was an export, which does not say what run it started from.
        usage: Python that uses the loaded `model`; "" if its task reads nothing.
    """

    title: str
    config: Mapping[str, Any]
    labels: list[str]
    for_transformers: bool
    licence: str
    results: Mapping[str, Any] | None = None
    environment: Mapping[str, Any] | None = None
    from_export: bool = False
    usage: str = ""

    def text(self) -> str:
        """Write the card in Markdown, with the header that huggingface.co reads."""
        parts = [self._header(), f"# {self.title}\n", self._what(), self._data(), self._figures()]
        parts += [self._load(), self._training(), self._licence()]
        return "\n".join(part for part in parts if part)

    @property
    def _task(self) -> str:
        return str(self.config["data"]["class_path"]).rpartition(".")[2]

    @property
    def _options(self) -> Mapping[str, Any]:
        return self.config["data"].get("init_args") or {}

    def _header(self) -> str:
        header: dict[str, Any] = {
            "library_name": "transformers" if self.for_transformers else "clusterformer",
            "license": self.licence,
            "tags": ["clusterformer", self._task.lower()],
        }
        if self.for_transformers:
            header["pipeline_tag"] = "text-classification"
        base = self.config["model"].get("pretrained")
        if base and base.count("/") == 1 and base[0] not in "./~":
            header["base_model"] = base
        return f"---\n{yaml.safe_dump(header, sort_keys=False)}---\n"

    def _what(self) -> str:
        model = self.config["model"]
        attention = model["attention"]
        name = str(attention["class_path"]).rpartition(".")[2]
        options = attention.get("init_args") or {}
        said = ", ".join(f"{key}={value}" for key, value in options.items() if key != "causal")
        labels = f" Its labels: {', '.join(self.labels)}." if self.labels else ""
        return (
            f"A model of the task {self._task}, trained with clusterformer.{self._start()}{labels}"
            f"\n\nAttention: `{name}({said})`.\n"
        )

    def _start(self) -> str:
        model = self.config["model"]
        base = str(model.get("pretrained") or "").rstrip("/").rpartition("/")[2]
        if base:
            return f" It started from the pretrained model {base}."
        if model.get("init_from"):  # a folder of its maker's, which says nothing to others
            return " It started from the weights of another training with clusterformer."
        return "" if self.from_export else " It was trained from random weights."

    def _data(self) -> str:
        name = self._options.get("name")
        if not name:
            return "## Data\n\nFiles of its maker's own.\n"
        found = published_sets().get(name)
        terms = f"; licence of the data: {found.licence}; see {found.page}" if found else ""
        return f"## Data\n\n{name}{terms}.\n"

    def _figures(self) -> str:
        results = (self.results or {}).get("results") or {}
        rows = [
            f"| {name} | {value:.4f} |" for name, value in results.items() if "layer" not in name
        ]
        if not rows:
            return "## Figures\n\nNot known: no finished run was tested with these weights.\n"
        head = "| measure | value |\n|---|---|\n"
        seed = self.config.get("seed_everything", 0)
        return f"## Figures\n\nOne training, seed {seed}.\n\n{head}" + "\n".join(rows) + "\n"

    def _load(self) -> str:
        modules = self._modules()
        imports = "".join(f"import {module}\n" for module in modules)
        needed = (
            f"Its classes in {', '.join(modules)} are not in this folder: import them first, from "
            "its maker's files.\n\n"
            if modules
            else ""
        )
        use = f"print({self.usage})\n" if self.usage else ""
        ours = (
            f"```python\nimport clusterformer\n{imports}\nmodel = clusterformer.load(FOLDER)\n"
            f"{use}```\n"
        )
        if not self.for_transformers:
            return (
                "## Load\n\nWith clusterformer only (`pip install clusterformer`); transformers "
                f"cannot load this folder.\n\n{needed}{ours}"
            )
        return (
            "## Load\n\nWith transformers, whose model is clusterformer's own code "
            f"(`pip install 'clusterformer[pretrained]'`):\n\n{needed}"
            f"```python\n{imports}"
            "from transformers import AutoModelForSequenceClassification, AutoTokenizer"
            "\n\ntokenizer = AutoTokenizer.from_pretrained(FOLDER, trust_remote_code=True)\n"
            "model = AutoModelForSequenceClassification.from_pretrained(FOLDER, "
            "trust_remote_code=True)\n```\n\nWith clusterformer:\n\n" + ours
        )

    def _modules(self) -> list[str]:
        """List the modules of classes that are not clusterformer's."""
        chosen = [self.config["data"], *(self.config["model"].get(name) for name in MECHANISMS)]
        modules = {str(part["class_path"]).rpartition(".")[0] for part in chosen if part}
        return sorted(name for name in modules if name and name.split(".")[0] != "clusterformer")

    def _training(self) -> str:
        found = self.environment
        if not found:
            return ""
        versions = ", ".join(f"{name} {version}" for name, version in found["packages"].items())
        return (
            f"## Training\n\n    {found['command']}\n\nclusterformer {found['clusterformer']}, "
            f"{versions}, Python {found['python']}, {found['cpus']} CPUs, "
            f"GPUs: {', '.join(found['gpus']) or 'none'}.\n"
        )

    def _licence(self) -> str:
        if self.licence == UNKNOWN:
            return (
                "## Licence\n\nNone stated. The licences of the pretrained model and of the data "
                "may bind it.\n"
            )
        return f"## Licence\n\n{self.licence}. The licence of the data may bind it too.\n"
