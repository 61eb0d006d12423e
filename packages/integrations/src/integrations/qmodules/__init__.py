"""Drop-in layers that keep what backward needs in a few bits: ActNN (Chen et al., ICML 2021), on the CPU, too.

from integrations import qmodules

model = qmodules.QModule(model, level="L3")
...train as before...
print(qmodules.summary(model))
"""

from integrations.qmodules.config import config, set_optimization_level
from integrations.qmodules.levels import LEVELS, QLevel

__all__ = ["LEVELS", "QLevel", "config", "set_optimization_level"]
