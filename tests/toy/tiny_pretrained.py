"""Tiny random models of transformers with a tokenizer, in folders as they are published."""

from pathlib import Path
from typing import Any

WORDS = ["a", "fine", "dull", "film", "very", "and", "the", "plot", ".", "how", "long", "is"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]


def write_tokenizer(folder: Path, segments: bool = True, words: list[str] = WORDS) -> None:
    """Write a tokenizer of words with BERT's special tokens, or RoBERTa's without segments."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    names = SPECIAL if segments else ["<s>", "<pad>", "</s>", "<unk>"]
    vocabulary = {word: number for number, word in enumerate([*names, *words])}
    unknown = "[UNK]" if segments else "<unk>"
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=unknown))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    first, last = ("[CLS]", "[SEP]") if segments else ("<s>", "</s>")
    pair = f"{first} $A {last} $B:1 {last}:1" if segments else f"{first} $A {last} {last} $B {last}"
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=pair,
        special_tokens=[(name, vocabulary[name]) for name in (first, last)],
    )
    made.enable_truncation(7)  # as some published ones do; a training must not inherit it
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token=unknown,
        pad_token="[PAD]" if segments else "<pad>",
        cls_token=first,
        sep_token=last,
    ).save_pretrained(folder)


def write_bert(folder: Path, words: list[str] = WORDS, **options: Any) -> Path:
    """Write a BERT of 2 layers, width 16, 32 positions."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    sizes |= {"intermediate_size": 32, "max_position_embeddings": 32}
    vocab_size = len(SPECIAL) + len(words)
    BertModel(BertConfig(vocab_size=vocab_size, **{**sizes, **options})).save_pretrained(folder)
    write_tokenizer(folder, words=words)
    return folder


def write_roberta(folder: Path) -> Path:
    """Write a RoBERTa likewise: no segments, padding is token 1, positions begin behind it."""
    from transformers import RobertaConfig, RobertaModel

    config = RobertaConfig(
        vocab_size=len(SPECIAL) + len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=34,
        type_vocab_size=1,
        pad_token_id=1,
        bos_token_id=0,
        eos_token_id=2,
    )
    RobertaModel(config).save_pretrained(folder)
    write_tokenizer(folder, segments=False)
    return folder


def write_gpt2(folder: Path, words: list[str] = WORDS) -> Path:
    """Write a GPT-2 likewise: causal, and its segments would be tokens like any other."""
    from transformers import GPT2Config, GPT2Model

    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32}
    tokens = {"bos_token_id": 2, "eos_token_id": 3}
    config = GPT2Config(vocab_size=len(SPECIAL) + len(words), **sizes, **tokens)
    GPT2Model(config).save_pretrained(folder)
    write_tokenizer(folder, words=words)
    return folder
