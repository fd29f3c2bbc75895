"""cleanlab's scores of labels, with sites; see fnlkit.cleanlab.rank."""

from fnlkit.cleanlab.rank import get_label_quality_scores as get_label_quality_scores
