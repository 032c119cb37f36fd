"""The language: text to tree and tree to text, in two syntaxes."""
