"""From what people have (pictures, text, arrays) to what a model takes, and back again.

Nothing here knows an architecture or a runtime: a `Reading` record says what each input and output
means, and these modules act on it with NumPy. Every fault a user can cause is a coded diagnostic.
"""
