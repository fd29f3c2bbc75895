"""Selection of the model of a run, and the counts for the selection (`--select`, `--patience`)."""

from typing import Any

import torch

from fnlkit.artifacts.names import REAL_SITES
from fnlkit.artifacts.run import Run
from fnlkit.core.errors import InputError
from fnlkit.experiment.criteria import AGREEMENT, CHANGES
from fnlkit.federated.client.client import read_ahead
from fnlkit.federated.client.measuring import reply_held_out_agreement, reply_prediction_changes
from fnlkit.federated.client.network import Model


class Selection:
    """The chosen model of a run, and the measurements for the choice.

    Parameters
    ----------
    plan : fnlkit.experiment.plan.Plan
    clients : fnlkit.federated.server.clients.Clients
    held_out : fnlkit.experiment.evaluation_set.EvaluationSet
        Held-out samples of the clients; may be empty.
    dataset : fnlkit.datasets.Dataset
    evaluated : fnlkit.experiment.evaluation_set.EvaluationSet
        Samples on which models are tested during training.

    Attributes
    ----------
    rule : callable or None
        None selects the model of the last round.
    round : int or None
        Chosen round.
    weights : Tensor (P + Q,) or None
        Model of the chosen round.
    asks : bool
        Whether real sites count, also if the server has no sample for an evaluation.
    latest : Tensor or None
        Reference for the number of changed predictions: int64 (m,), the classes of all clients' training samples at the last
        measurement; at real sites (P + Q,), the model that was measured.
    """

    def __init__(self, plan, clients, held_out, dataset, evaluated):
        settings = plan.settings
        self.rule = plan.criterion
        self.patience = settings.patience
        self.spec = str(settings.select)
        self.clients, self.held_out = clients, held_out
        # If the held-out samples are the evaluation set, each row already contains their agreement.
        self._measured = bool(evaluated.clients and len(evaluated))
        self.round, self.weights, self.latest = None, None, None
        # A protected run sends no counts, because the noise on updates does not cover them.
        self._open = plan.protection is None and "own" not in plan.needs
        self.at_sites = dataset.name == REAL_SITES
        self.asks = self.at_sites and self.rule is not None
        column = None if self.rule is None else self.rule.func.column
        self.column = "agreement" if self._measured and column == AGREEMENT else column

    def measure(self, weights: torch.Tensor) -> tuple[dict[str, Any], torch.Tensor | None]:
        """Measure a global model: the columns of a row, and `latest`, which the caller stores with the round.

        Each client replies with two counts per column.

        Parameters
        ----------
        weights : Tensor (P + Q,)
        """
        row: dict[str, Any] = {}
        count = len(self.clients)
        if not self._open:
            return row, None
        if self.at_sites:
            return self._measure_at_sites(weights)
        if len(self.held_out) and not self._measured:
            logits = self.clients.predict(weights, self.held_out.x).cpu()
            row[AGREEMENT] = self.held_out.scores(logits)["agreement"]
        latest = _predictions(self.clients, weights) if self.column == CHANGES else None
        if latest is not None and self.latest is not None:
            row[CHANGES] = int((latest != self.latest).sum())
        size, received = count * weights.numel() * weights.element_size(), self._measured
        if AGREEMENT in row:
            self.clients.count_traffic(AGREEMENT, up=16 * count, down=size)
            received = True
        if CHANGES in row:  # between the model and the one before, which a client does not keep
            self.clients.count_traffic(CHANGES, up=16 * count, down=size * (1 if received else 2))
        return row, latest

    def _measure_at_sites(self, weights):
        """Measure as `measure` does, from the replies of real sites; sites without a reply count like the others."""
        if self.column is None or (self.column == CHANGES and self.latest is None):
            return {}, weights.clone() if self.column == CHANGES else None
        step, broadcast = reply_held_out_agreement, {}
        if self.column == CHANGES:
            step, broadcast = reply_prediction_changes, {"before": self.latest}
        counts = self.clients.survey(Model(self.clients.network, weights), step, self.column, broadcast=broadcast)
        pairs = [(min(part, whole), whole) for part, whole in (pair.tolist() for pair in counts)]
        counted, samples = (sum(column) for column in zip(*pairs, strict=True)) if pairs else (0, 0)
        if self.column == AGREEMENT:
            return {AGREEMENT: counted / samples} if samples else {}, None
        everywhere = int(self.clients.sizes.sum())
        return {CHANGES: round(counted / samples * everywhere)} if samples else {}, weights.clone()

    def update(self, history: list[dict[str, Any]], weights: torch.Tensor, latest: torch.Tensor | None) -> None:
        """Keep a model if the criterion chooses its round.

        Parameters
        ----------
        history : list of dict
            Rows up to the measured round.
        weights : Tensor (P + Q,)
        latest : Tensor or None
            As returned by `measure`.
        """
        if self.rule is None:
            return
        if latest is not None:
            self.latest = latest
        rows = self._filter_rows(history)
        if rows and rows[-1] is history[-1]:
            chosen = rows[self.rule([row[self.column] for row in rows])]["round"]
            if chosen == history[-1]["round"]:
                self.round, self.weights = chosen, weights.clone()
            elif chosen != self.round:
                raise InputError(
                    f"{self.spec}: chose round {chosen}, which is neither the last choice nor the newest", parameter="select"
                )

    def stops(self, history: list[dict[str, Any]]) -> bool:
        """Whether `patience` measured rounds have passed since the chosen round."""
        if not self.patience or self.round is None:
            return False
        return sum(row["round"] > self.round for row in self._filter_rows(history)) >= self.patience

    def _filter_rows(self, history):
        rows = [row for row in history if row["stage"] != "final"]
        if self.rule.func.each_stage and rows:
            others = [i for i, row in enumerate(rows) if row["stage"] != rows[-1]["stage"]]
            rows = rows[max(others, default=-1) + 1 :]
        return [row for row in rows if self.column in row]

    # ---- saving and resuming
    def arrays(self, model: Model, history: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Collect the tensors of a run in addition to the chosen weights: the last model and `latest`."""
        rounds = sum(row["stage"] != "final" for row in history)
        tensors = {} if self.round in (None, rounds - 1) else {"last": model.weights}
        return tensors | ({} if self.latest is None else {self._name: self.latest})

    @property
    def _name(self):
        """Name of `latest` in a run."""
        return "before" if self.at_sites else "predicted"

    def facts(self, history: list[dict[str, Any]]) -> dict[str, Any] | None:
        """Collect the metadata of a run: criterion, chosen round and value; None for ``last``."""
        if self.rule is None:
            return None
        about = {"criterion": self.spec, "column": self.column, "round": self.round}
        if self.round is not None:
            about |= {"stage": history[self.round]["stage"], "value": history[self.round][self.column]}
        return about | {"stopped": self.stops(history)}

    def resume(self, run: Run, like: torch.Tensor) -> None:
        """Continue the selection of a run, with weights of the device and type of `like`."""
        about = run.meta.get("selection") or {}
        if self.rule is not None and about.get("round") is not None:
            self.round, self.weights = about["round"], run.weights.to(like)
        self.latest = run.selection.get(self._name)


def _predictions(clients, weights):
    """Predict the classes (m,) of all clients' training samples with a global model, in client order."""
    predictions = []
    for client in read_ahead(clients.members):
        predictions.append(clients.predict(weights, client.x).argmax(-1).cpu())
        client.leave()
    return torch.cat(predictions)
