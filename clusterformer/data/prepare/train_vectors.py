"""Word vectors trained here, for those who have no GloVe: skip-gram on WikiText-2 and the books."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from clusterformer.data.cache import cached_folder
from clusterformer.data.documents import LanguageModelingCorpus, named_documents
from clusterformer.data.tokenizers import WordTokenizer
from clusterformer.data.word_vectors import trained_vectors
from clusterformer.errors import missing

if TYPE_CHECKING:
    from gensim.models import Word2Vec

CORPORA: tuple[LanguageModelingCorpus, ...] = ("wikitext2", "gutenberg")
WIDTH = 300
_MIN_COUNT = 3  # occurrences of a word that gets a vector
_EPOCHS = 5
_SENTENCE = 1000  # words, of which gensim takes at most 10,000 at once


def train_vectors(root: str | Path | None = None, report: Callable[[str], None] = print) -> Path:
    """Train vectors of 300 numbers by skip-gram with negative sampling, unless they are there.

    In one thread and from a fixed seed, so that everybody gets the same ones. Text is that of the
    training splits, its words those of `WordTokenizer`.

    Args:
        root: Folder of the data sets; None for the default one.
        report: Function that gets a message, one line, for each step.

    Returns:
        File of the vectors, in GloVe's format.

    Raises:
        InputError: if gensim or one of the sets is missing.
    """
    path = trained_vectors()
    documents = [
        (name, document) for name in CORPORA for document in named_documents(name, "train", root)
    ]

    def fill(folder: Path) -> None:
        corpus = folder / "corpus.txt"
        count = 0
        with corpus.open("w", encoding="utf-8") as file:
            for name, document in documents:
                for words in _sentences(document.read(), name):
                    file.write(" ".join(words) + "\n")
                    count += len(words)
        report(f"vectors: {count:,} words of {' and '.join(CORPORA)}, {_EPOCHS} epochs")
        model = _train(corpus, report)
        corpus.unlink()
        with (folder / path.name).open("w", encoding="utf-8", newline="\n") as file:
            for word, row in zip(model.wv.index_to_key, model.wv.vectors, strict=True):
                file.write(f"{word} {' '.join(format(x, '.5f') for x in row.tolist())}\n")
        report(f"vectors: {len(model.wv):,} words, {WIDTH} numbers each")

    cached_folder(path.parent, fill, report)
    return path


def _train(corpus: Path, report: Callable[[str], None]) -> Word2Vec:
    try:
        from gensim.models import Word2Vec
        from gensim.models.callbacks import CallbackAny2Vec
    except ImportError:
        raise missing("word vectors need gensim", "text") from None

    class Epochs(CallbackAny2Vec):
        """Report of each epoch."""

        done = 0
        begun = time.monotonic()

        def on_epoch_end(self, model: Any) -> None:
            self.done += 1
            seconds = time.monotonic() - self.begun
            report(f"vectors: epoch {self.done} of {_EPOCHS}, {seconds:.0f} s")

    return Word2Vec(
        corpus_file=str(corpus), vector_size=WIDTH, sg=1, window=5, negative=5, epochs=_EPOCHS,
        min_count=_MIN_COUNT, seed=0, workers=1, callbacks=[Epochs()],
    )  # fmt: skip


def _sentences(text: str, name: LanguageModelingCorpus) -> Iterator[list[str]]:
    """Split a document into paragraphs of words, in the form in which texts are classified."""
    text = text.replace("’", "'").replace("_", " ")  # quotes and italics of books
    if name == "wikitext2":
        text = re.sub(r" @([-.,])@ ", r"\1", text).replace("<unk>", " ").replace("\n", "\n\n")
    for paragraph in re.split(r"\n\s*\n", text):
        words = WordTokenizer([]).split_text(paragraph)
        for start in range(0, len(words), _SENTENCE):
            if len(words[start:]) > 1:
                yield words[start : start + _SENTENCE]
