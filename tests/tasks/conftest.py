"""Tiny pretrained models in folders, and texts for them."""

import random
from pathlib import Path

import pytest
import torch
from tiny_pretrained import WORDS, write_bert, write_gpt2, write_roberta


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return write_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return write_roberta(tmp_path_factory.mktemp("roberta"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    return write_gpt2(tmp_path_factory.mktemp("gpt2"))


def sentence(rng: random.Random, length: int) -> str:
    return " ".join(rng.choices(WORDS, k=length))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(0)
    rows = [sentence(rng, rng.randint(3, 20)) for _ in range(60)]
    path = tmp_path_factory.mktemp("texts") / "texts.tsv"
    lines = ["text\tlabel", *(f"{row}\t{'good' if 'fine' in row else 'bad'}" for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = random.Random(0)
    rows = [(sentence(rng, rng.randint(2, 9)), sentence(rng, rng.randint(2, 9))) for _ in range(60)]
    path = tmp_path_factory.mktemp("pairs") / "pairs.tsv"
    lines = ["first\tsecond\tlabel", *(f"{u}\t{v}\t{len(u) > len(v)}" for u, v in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
