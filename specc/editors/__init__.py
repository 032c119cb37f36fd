"""What editors are told about specs: a JSON Schema and a TextMate grammar, both made of
the vocabulary, and a language server.

In comes a text that somebody is writing, out go diagnostics, what stands at a place,
what may be written there, and edits. Only `server` knows the protocol and its library;
everything else speaks of texts and offsets.
"""
