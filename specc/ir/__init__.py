"""The intermediate representation: typed operations on tensors with symbolic shapes."""
