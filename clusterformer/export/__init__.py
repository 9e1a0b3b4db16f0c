"""A trained model as a folder: safetensors, tokenizer, configuration, and a card that says what."""
