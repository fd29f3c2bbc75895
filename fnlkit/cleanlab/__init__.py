"""cleanlab's functions with sites; `fnlkit.cleanlab.filter`, `rank` and `count` are their public import paths."""
