"""What a model is once elaborated: typed operations on tensors with named, symbolic lengths."""
