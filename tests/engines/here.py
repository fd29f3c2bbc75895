"""Flower's messages without Ray: the same records and the same client app, answered in this process."""

from types import SimpleNamespace

from fnlkit.engines.flower import simulation
from fnlkit.engines.flower.engine import Flower


class Here(simulation.Simulation):
    """A runtime of the engine `flower` whose nodes are function calls.

    Attributes
    ----------
    mangle : callable (message number, reply or None) -> reply, or None for none
        What happens to replies on their way.
    """

    mangle = staticmethod(lambda number, reply: reply)
    asked = 0

    def start(self):
        from flwr.supercore.task_identity import TaskIdentity

        TaskIdentity.task_id = TaskIdentity.run_id = TaskIdentity.node_id = 1
        self.nodes, self.grid, self._answers = list(range(1, self.count + 1)), self, {}

    def alive(self):
        return self.grid is not None

    def _end(self):
        self.grid = None

    def push_messages(self, messages):
        for message in messages:
            self.asked += 1
            reply = simulation._visit(message, None, home=self.home)
            self._answers[str(self.asked)] = self.mangle(self.asked, reply)
            yield str(self.asked)

    def pull_messages(self, numbers):
        for number in numbers:
            reply = self._answers.pop(number, None)
            if reply is not None:
                about = SimpleNamespace(reply_to_message_id=number)
                yield SimpleNamespace(metadata=about, content=reply.content, has_error=lambda: False)


def stay_here(monkeypatch, **changes):
    """Make the engine `flower` answer in this process from now on."""
    kind = type("Changed", (Here,), changes)
    monkeypatch.setattr(Flower, "_runtime", lambda self: kind(self, self.count))
