#!/usr/bin/env bash
# Package: flwr 1.42.0, secure aggregation (SecAgg+) with the server's workflow and the clients' mod.
# Guess: of five nodes with a threshold of three, one that is lost in any of the four stages costs its own
#   update, and the mean of the others arrives.
# Behavior: that is so in the third and fourth stage. A node that is lost in the first or second stage,
#   before any node has a share of its keys, ends the round: in the fourth stage the server counts it among
#   the lost nodes whose shares it needs, all remaining nodes fail with KeyError, and there is no mean.
# Source: flwr/server/workflow/secure_aggregation/secaggplus_workflow.py, unmask_stage.
"$(dirname "$0")/fresh" flwr==1.42.0 numpy==2.4.6 <<'PYTHON'
import logging
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.compat.common.recorddict_compat import fitres_to_recorddict
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState
from flwr.supercore.task_identity import TaskIdentity

logging.getLogger("flwr").setLevel(logging.CRITICAL)
TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
NODES = [11, 12, 13, 14, 15]
STAGES = ["setup", "share_keys", "collect_masked_vectors", "unmask"]


def update(message, context):
    result = FitRes(Status(Code.OK, ""), ndarrays_to_parameters([np.full(4, float(context.node_id))]), 1, {})
    return Message(fitres_to_recorddict(result, False), reply_to=message)


class Grid:
    """The nodes of this process; node 12 does not answer in one stage."""

    def __init__(self, lost_in):
        self.lost_in, self.failures, self.states = lost_in, set(), {node: RecordDict() for node in NODES}

    def get_node_ids(self):
        return NODES

    def send_and_receive(self, messages, *, timeout=None):
        return [self.answer(message) for message in messages]

    def answer(self, message):
        node = message.metadata.dst_node_id
        message.metadata.__dict__["_message_id"] = "1"
        message = message_from_proto(message_to_proto(message))
        stage = message.content.config_records["secaggplus_configs"]["stage"]
        try:
            if (node, stage) == (12, self.lost_in):
                raise ConnectionError
            return secaggplus_mod(message, Context(1, node, {}, self.states[node], {}), update)
        except Exception as error:
            self.failures.add(type(error).__name__)
            return Message(Error(code=0, reason=""), reply_to=message)


class Round:
    """Context and strategy of one round."""

    def __init__(self):
        self.state = RecordDict({"config": ConfigRecord({"current_round": 1}), "parameters": ArrayRecord()})
        self.strategy, self.client_manager, self.mean = self, self, None

    def num_available(self):
        return len(NODES)

    def configure_fit(self, server_round, parameters, client_manager):
        return [(SimpleNamespace(node_id=node), FitIns(parameters, {})) for node in NODES]

    def aggregate_fit(self, server_round, results, failures):
        self.mean = round(float(parameters_to_ndarrays(results[0][1].parameters)[0][0]), 3)
        return None, {}


seen = {}
for lost_in in STAGES:
    workflow = SecAggPlusWorkflow(1.0, 3, max_weight=1.0, clipping_range=32.0)
    grid, outcome, state = Grid(lost_in), Round(), WorkflowState()
    stages = workflow.setup_stage, workflow.share_keys_stage, workflow.collect_masked_vectors_stage, workflow.unmask_stage
    all(stage(grid, outcome, state) for stage in stages)
    seen[lost_in] = outcome.mean, sorted(grid.failures - {"ConnectionError"})
print(f"flwr {version('flwr')}: (mean of 11 to 15, errors of other nodes) if node 12 is lost in a stage: {seen}")
expected = {"setup": (None, ["KeyError"]), "share_keys": (None, ["KeyError"])}
expected |= {"collect_masked_vectors": (13.25, []), "unmask": (13.0, [])}
if seen != expected:
    raise SystemExit(f"the behavior has changed: {expected} before")
PYTHON
