"""cleanlab's filter of wrong labels, with sites; see fnlkit.cleanlab.filter."""

from fnlkit.cleanlab.filter import find_label_issues as find_label_issues
