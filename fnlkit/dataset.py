"""cleanlab's summaries of classes, with sites; see fnlkit.cleanlab.dataset."""

from fnlkit.cleanlab.dataset import find_overlapping_classes as find_overlapping_classes
from fnlkit.cleanlab.dataset import health_summary as health_summary
from fnlkit.cleanlab.dataset import overall_label_health_score as overall_label_health_score
from fnlkit.cleanlab.dataset import rank_classes_by_label_quality as rank_classes_by_label_quality
