"""cleanlab's report, with a row per site; see fnlkit.cleanlab.datalab."""

from fnlkit.cleanlab.datalab import Datalab as Datalab
