"""A run in a Python session with methods for evaluation."""

from fnlkit.artifacts.display import Facts, html_table, plain
from fnlkit.artifacts.run import Run
from fnlkit.results import comparison
from fnlkit.results.evaluation import score_name


class TrainedRun(Run):
    """A run with methods for evaluation; it is accepted wherever a `fnlkit.artifacts.run.Run` is."""

    @classmethod
    def of(cls, run: Run) -> "TrainedRun":
        """Wrap a Run as a TrainedRun that shares its arrays."""
        trained = cls.__new__(cls)
        vars(trained).update(vars(run))
        return trained

    def summary(self, *, target: float | None = None) -> Facts:
        """Collect the run's numbers without its data set, as a dict that displays as a table.

        Parameters
        ----------
        target : float or None
            As for `fnlkit.results.evaluation.summary`.
        """
        return Facts(repr(self), comparison.row(self, target=target))

    def _repr_html_(self):
        short = (
            *(f"{score_name(self)}_{at}" for at in ("best", "last", "late", "chosen")),
            "label_accuracy_given",
            "label_accuracy_corrected",
        )
        facts = comparison.row(self)
        rows = [(name.replace("_", " "), plain(facts[name])) for name in (*short, "client_rounds", "seconds") if name in facts]
        return html_table(repr(self), None, rows)
