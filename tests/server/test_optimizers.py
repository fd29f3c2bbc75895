"""What an optimizer may do in a round: send, see the replies, change what is aggregated, remember."""

import pytest
import torch

from fnlkit.client.training import Fit
from fnlkit.errors import InputError
from fnlkit.server.optimizers import Additions, FedOpt, local_steps
from tests.toy import toy

FIT = Fit(epochs=2, lr=0.1, batch_size=8)


def counted(client, model, received):
    """Reply what was sent, so that the server can see that it arrived."""
    return {"echo": received["number"] + received["own"]}


def test_an_optimizer_sends_sees_replies_changes_what_is_aggregated_and_remembers():
    fed, model = toy()
    seen = []

    def prepare(request):
        seen.append((list(request.ids), request.fit.lr, dict(request.memory)))
        own = torch.as_tensor(request.ids, dtype=torch.float64)
        return Additions(after=(counted,), broadcast={"number": torch.tensor(0.5)}, scatter={"own": own})

    def rescale(updates):
        return updates.start + 2 * (updates.trained - updates.start)

    def server(updates, merged):
        updates.memory["rounds"] = updates.memory.get("rounds", torch.tensor(0)) + 1
        seen.append((updates.replies["echo"].tolist(), updates.ids.tolist(), updates.weights.tolist(), updates.share))
        return merged

    opt = FedOpt(FIT, prepare=prepare, rescale=rescale, server=server, decay=0.5)
    weights = torch.arange(1, 13).double()
    found, said = opt.round(fed, [7, 2, 4], model, weights=weights)
    assert seen[0] == ([7, 2, 4], 0.1, {})
    assert seen[1] == ([2.5, 4.5, 7.5], [2, 4, 7], [3.0, 5.0, 8.0], 0.25)
    other, same = toy()
    plain, _ = FedOpt(FIT).round(other, [2, 4, 7], same, weights=weights)
    torch.testing.assert_close(found.weights - model.weights, 2 * (plain.weights - model.weights), rtol=1e-9, atol=1e-12)
    opt.round(fed, [0], found)
    assert seen[2] == ([0], 0.05, {"rounds": torch.tensor(1)}) and opt.memory["rounds"] == 2


def test_a_method_and_its_optimizer_may_not_send_two_things_by_one_name():
    fed, model = toy()
    opt = FedOpt(FIT, prepare=lambda request: Additions(broadcast={"number": torch.tensor(0.5)}))
    with pytest.raises(InputError, match="both send 'number'"):
        opt.round(fed, [0], model, broadcast={"number": torch.tensor(1.0)})


def test_local_steps_are_counted_as_they_are_taken():
    fed, model = toy()
    for client in fed.members[:4]:
        taken = []

        def count(w, w_start, batch, taken=taken):
            taken.append(1)
            return torch.zeros_like(w)

        FedOpt(FIT, corrections=(count,)).round(fed, [client.id], model)
        assert local_steps(fed.sizes, FIT)[client.id] == len(taken)
