"""How a next token is chosen and a text is written, over any model that gives the logits of its next token."""
