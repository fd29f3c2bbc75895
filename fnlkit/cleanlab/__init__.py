"""cleanlab's functions with sites; `fnlkit.filter`, `rank` and `count` are their public import paths."""
