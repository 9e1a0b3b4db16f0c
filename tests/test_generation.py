"""What generation tells while it works."""

import logging

import pytest

from clusterformer import generation
from clusterformer.attention import FullAttention, ReformerAttention
from clusterformer.data.stream_tokenizers import ByteTokenizer
from clusterformer.generation import TextGenerator
from clusterformer.models.config import TransformerConfig
from clusterformer.models.language_model import LanguageModel


@pytest.mark.parametrize(("mechanism", "told"), [(FullAttention, False), (ReformerAttention, True)])
def test_a_long_prompt_that_is_read_token_by_token_is_announced(
    mechanism: type, told: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(generation, "LONG", 100)
    config = TransformerConfig(mechanism, d_model=16, num_heads=2, num_layers=1, d_ff=16)
    generator = TextGenerator(LanguageModel(config, vocab_size=258).eval(), ByteTokenizer())
    with caplog.at_level(logging.INFO, "clusterformer"):
        assert "".join(generator.stream("a" * 99, tokens=1)) is not None
        assert not caplog.messages
        "".join(generator.stream("a" * 150, tokens=1))
    notes = [note for note in caplog.messages if "reading a prompt of 151 tokens, about" in note]
    assert len(notes) == told
    assert all("ReformerAttention reads it token by token" in note for note in notes)
