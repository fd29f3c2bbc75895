"""cleanlab's functions with sites; `fnlkit.filter`, `rank`, `count`, `dataset` and `datalab` are their public import paths."""
