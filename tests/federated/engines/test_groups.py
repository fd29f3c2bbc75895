"""Groups of clients that train at once, and answers of workers."""

import pickle

import torch

from fnlkit.federated.engines.stacked import groups_of
from fnlkit.federated.engines.workers import _separate


def test_groups_depend_on_the_cohort_and_on_at_once():
    """Sizes 9, 9, 7, 5, 3: the pairs are the clients of 9, those of 7 and 5, and the last one."""
    sizes = torch.tensor([5, 9, 3, 9, 7]).numpy()
    assert groups_of(sizes, 2) == [[1, 3], [0, 4], [2]]
    assert groups_of(sizes, 0) == groups_of(sizes, 5) == groups_of(sizes, 9) == [[0, 1, 2, 3, 4]]


def test_an_answer_contains_no_other_client_of_the_stack():
    """A row of the stack (10, 1000) in float32 has 4,000 bytes."""
    stack = torch.zeros(10, 1000)
    answer = ({"weights": stack[0]}, (torch.arange(3), {"marks": stack[1]}, {"old": [stack[2]]}, {"dropped"}))
    sent = pickle.dumps(_separate(answer))
    assert len(pickle.dumps(answer)) > 120_000 > 20_000 > len(sent)
    reply, (_, rows, state, dropped) = pickle.loads(sent)
    assert torch.equal(reply["weights"], stack[0]) and torch.equal(state["old"][0], stack[2]) and dropped == {"dropped"}
