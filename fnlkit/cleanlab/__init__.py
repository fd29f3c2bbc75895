"""cleanlab's functions with sites; `fnlkit.cleanlab.filter`, `rank` and `count` are their public import paths."""

from fnlkit.cleanlab import count as count
from fnlkit.cleanlab import filter as filter
from fnlkit.cleanlab import rank as rank
