"""Functions behind the commands; `fnlkit` exports them for use from Python."""
