"""Layer 4: the engine protocol and its engines; turns (tokenizer, chat template)."""
