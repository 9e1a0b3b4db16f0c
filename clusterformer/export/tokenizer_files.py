"""Files of a tokenizer as transformers reads them."""

from __future__ import annotations

import json
from typing import Any

from clusterformer.data.byte_pairs import tokenizers_library
from clusterformer.data.pretrained_tokenizer import PretrainedTokenizer
from clusterformer.data.tokenizers import (
    SPECIAL_TOKENS,
    SPLITS,
    BytePairTokenizer,
    Tokenizer,
    WordTokenizer,
)

_CONFIG_FILE = "tokenizer_config.json"


def tokenizer_files(
    tokenizer: Tokenizer, max_length: int | None, *, pairs: bool = False
) -> dict[str, str]:
    """Return the files of a tokenizer, name to text.

    Args:
        tokenizer: Tokenizer of single texts.
        max_length: Maximum number of tokens of a row, to be noted; None for no limit.
        pairs: Whether a row holds both texts of a pair.
    """
    if isinstance(tokenizer, PretrainedTokenizer):
        files = dict(tokenizer.files)
        config = json.loads(files.get(_CONFIG_FILE, "{}"))
        config["padding_side"] = "right"  # as in training: a decoder's may pad on the left
        if not config.get("pad_token"):  # nor has it always a token for it; any is masked
            config["pad_token"] = config.get("eos_token") or config.get("unk_token")
        if pairs and tokenizer.pair.second is not None:  # not every class gives them by itself
            config["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    else:
        state = tokenizer.state()
        json_text = state["json"] if isinstance(tokenizer, BytePairTokenizer) else _words(tokenizer)
        pad, unknown = SPECIAL_TOKENS
        files = {"tokenizer.json": json_text}
        config = {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "pad_token": pad,
            "unk_token": unknown,
            "split_special_tokens": True,  # no text spells a special token
            "model_input_names": ["input_ids", "attention_mask"],
        }
    if max_length is not None:
        config["model_max_length"] = max_length
    files[_CONFIG_FILE] = json.dumps(config, ensure_ascii=False, indent=2)
    return files


def _words(tokenizer: Tokenizer) -> str:
    """Write a tokenizer of words in the tokenizers library's JSON.

    The two split alike, except for letters that are written with combining marks.
    """
    assert isinstance(tokenizer, WordTokenizer)
    library: Any = tokenizers_library()
    state = tokenizer.state()
    pad, unknown = SPECIAL_TOKENS
    vocabulary = {word: number for number, word in enumerate([*SPECIAL_TOKENS, *state["words"]])}
    made = library.Tokenizer(library.models.WordLevel(vocabulary, unk_token=unknown))
    steps = [library.normalizers.Lowercase()] if state["lowercase"] else []
    if state["split"] == "whitespace" and pad not in state["words"]:  # a word like any other
        word = library.Regex(rf"(?<!\S){pad}(?!\S)")
        steps.append(library.normalizers.Replace(word, unknown))
    made.normalizer = library.normalizers.Sequence(steps)
    pattern = library.Regex(f"(?i){SPLITS[state['split']].pattern}")
    made.pre_tokenizer = library.pre_tokenizers.Split(pattern, "removed", invert=True)
    return made.to_str()
