"""All ops of the IR. Importing this package fills `specc.ir.op.OPS_BY_NAME`."""

from specc.ir.ops.conv import *  # noqa: F403
from specc.ir.ops.indexing import *  # noqa: F403
from specc.ir.ops.interpolation import *  # noqa: F403
from specc.ir.ops.loop import *  # noqa: F403
from specc.ir.ops.nn import *  # noqa: F403
from specc.ir.ops.quantized import *  # noqa: F403
from specc.ir.ops.recurrent import *  # noqa: F403
from specc.ir.ops.tensor import *  # noqa: F403
