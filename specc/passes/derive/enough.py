"""As many keys as are taken: `topk` among keys that grow, where there are fewer at first.

    step 1, 1 key, k = 3          step 4, 4 keys
    a  -inf  -inf  -inf           a  b  c  d  -inf  -inf  -inf
    └──────┬─────┘                └── three of these
    the numbers 0, 1, 2

In the whole graph row 0 sees one key and takes the first two of those that its mask hid
beside it: they hold minus infinity there, and have the same numbers.
"""

from math import inf

from specc.ir import ops
from specc.ir.dim import Dim
from specc.ir.graph import Builder, Value


def enough_keys(b: Builder, op: ops.TopK, keys: Value) -> Value:
    """Keys behind which so many hidden ones stand that as many can be taken."""
    hidden = -inf if op.largest else inf
    return b.one(ops.Pad(op.axis, Dim.of(0), op.k, value=hidden), keys)
