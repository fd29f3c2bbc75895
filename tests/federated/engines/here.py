"""Flower's messages in this process: nodes whose replies are changed on their way, and sites without a network."""

from fnlkit.federated.engines.flower.local import LocalNodes
from fnlkit.federated.engines.flower.messages import LATE


def change_replies(monkeypatch, mangle):
    """Let the nodes of the engine `flower` return ``mangle(message number, reply)``; None means that no reply arrives."""

    class Changed(LocalNodes):
        asked = 0

        def exchange(self, contents, limit):
            for node, reply in super().exchange(contents, limit):
                self.asked += 1
                changed = mangle(self.asked, reply)
                yield node, LATE if changed is None else changed

    monkeypatch.setattr("fnlkit.federated.engines.flower.engine.LocalNodes", Changed)


class Grid:
    """Sites without a network: their client apps, called with Flower's own messages.

    Parameters
    ----------
    app : flwr.clientapp.ClientApp
    config : dict
        The project's.
    nodes : dict of int to dict
        A node's configuration by its number.

    Attributes
    ----------
    left : list of bytes
        All that sites sent.
    keys : dict of int to bytes
        Public keys of nodes, in PEM.
    mangle : callable (node, reply) -> reply
        What happens to replies on their way.
    """

    mangle = staticmethod(lambda node, reply: reply)

    def __init__(self, app, config, nodes):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.app, self.config, self.nodes, self.left, self._answers = app, config, nodes, [], {}
        self.keys = {}
        self._memories = {}  # of the nodes: Flower keeps it on them for as long as the run takes

    def get_node_ids(self):
        return list(self.nodes)

    def get_nodes(self):
        from flwr.proto.node_pb2 import NodeInfo

        return [NodeInfo(node_id=node, public_key=self.keys.get(node, b"")) for node in self.nodes]

    def push_messages(self, messages):
        from flwr.app import Context, RecordDict
        from flwr.common.serde import message_from_proto, message_to_proto

        for message in messages:
            number = str(len(self.left))
            message.metadata.__dict__["_message_id"] = number
            node = message.metadata.dst_node_id
            memory = self._memories.setdefault(node, RecordDict())
            context = Context(1, node, self.nodes[node], memory, self.config)
            reply = self.mangle(node, self.app(message_from_proto(message_to_proto(message)), context))
            self.left.append(message_to_proto(reply).SerializeToString())
            self._answers[number] = reply
            yield number

    def pull_messages(self, numbers):
        yield from (self._answers.pop(number) for number in numbers if number in self._answers)

    def send_and_receive(self, messages, *, timeout=None):
        return list(self.pull_messages(list(self.push_messages(messages))))
