"""From what people have (pictures, text, arrays) to what a model takes, and back again.

In come files, texts and arrays with the `Reading` record of a model, out go arrays for
its inputs and words or pictures for its results. Nothing here knows an architecture or
a runtime.
"""
