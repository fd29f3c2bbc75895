"""A head on frozen features: accuracy of federated and of pooled training, and samples/s of the kernels.

    python -m benchmarks.head features.npz [--rounds 30] [--only accuracy|speed]

features.npz is a data set of vectors (x_train (n, D), y_train, x_test, y_test) whose labels are treated as true.  Accuracy:
FedAvg with 100 clients of Dirichlet(0.5), 10 per round, 2 local epochs, batches of 10, two heads, compared with scikit-learn
on the pooled features.  Pooling is not possible in a federation; it is the upper limit.  Speed: one thread, batches of 10
from one client's 500 samples, interleaved runs, CPU time instead of wall time because of other load on the machine.
SGDClassifier uses one sample per step.
"""

import argparse
import time

import numpy as np
import torch
from torch import nn

from fnlkit import datasets
from fnlkit.datasets.partitioning import federation as split
from fnlkit.experiment import Experiment, Settings
from fnlkit.kernels.fused import fused_fit

HEADS = {"mlp(hidden=[])": 0.01, "mlp(hidden=512)": 0.01}


def module(net):
    """Return the torch network for the description of an MLP."""
    layers = [nn.Flatten()]
    for width, units in zip(net[1], net[1][1:], strict=False):
        layers += [nn.Linear(width, units), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def interleaved(jobs, repeats, clock):
    """Return the quartiles of each job's samples/s, (jobs, 3); a job returns the number of processed samples."""
    rates = np.zeros((repeats, len(jobs)))
    for r in range(repeats + 1):
        for j, job in enumerate(jobs):
            started = clock()
            samples = job()
            if r:  # the first repetition is a warm-up
                rates[r - 1, j] = samples / (clock() - started)
    return np.quantile(rates, [0.25, 0.5, 0.75], axis=0).T


def federated(data, model, rounds):
    """Return the test accuracy after the last round, the best accuracy, and the CPU seconds per round."""
    fed = split(data, "dirichlet(alpha=0.5)", clients=100, labels="true")
    settings = Settings(model=model, rounds=rounds, fraction=0.1, epochs=2, lr=HEADS[model], momentum=0.5)
    experiment, stamps = Experiment(fed, data, settings, engine="fused"), [time.process_time()]
    run = experiment.run(on_round=lambda row: stamps.append(time.process_time()))
    found = [row["accuracy"] for row in run.history if "accuracy" in row]
    return found[-1], max(found), float(np.median(np.diff(stamps)[1:]))


def pooled(data):
    """Yield (name, test accuracy, CPU seconds) of scikit-learn on all features, standardized by feature."""
    from sklearn.linear_model import LogisticRegression, SGDClassifier

    train, test = np.asarray(data.x_train), np.asarray(data.x_test)
    mean, std = train.mean(0), train.std(0)
    train, test = (train - mean) / std, (test - mean) / std
    for name, peer in {
        "LogisticRegression(C=0.01)": LogisticRegression(C=0.01, max_iter=300),
        "SGDClassifier(log_loss), 5 epochs": SGDClassifier(loss="log_loss", alpha=1e-3, max_iter=5, tol=None, random_state=0),
    }.items():
        began = time.process_time()
        peer.fit(train, data.y_train)
        yield name, peer.score(test, data.y_test), time.process_time() - began


def accuracy(data, rounds):
    print(f"test accuracy in %, {len(data.y_train):,} training samples of {data.x_train.shape[1]:,} features, clean labels")
    peers = []
    for name, right, seconds in pooled(data):
        peers.append(right)
        print(f"  pooled     {name:36} {100 * right:6.2f}   {seconds:6.1f} s", flush=True)
    for model in HEADS:
        last, best, seconds = federated(data, model, rounds)
        rest = f"best of {rounds} rounds {100 * best:.2f}; ratio to LogisticRegression {last / peers[0]:.3f}"
        print(f"  federated  FedAvg, {model:28} {100 * last:6.2f}   {seconds:6.2f} s per round; {rest}", flush=True)


def speed(data, repeats=7):
    """Print samples/s of training a head on 500 samples: fused kernel, eager torch, scikit-learn's SGDClassifier."""
    from sklearn.linear_model import SGDClassifier

    rng = np.random.default_rng(0)
    x, y = np.asarray(data.x_train[:500]), np.asarray(data.y_train[:500])
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-6)
    order = np.concatenate([rng.permutation(500).reshape(50, 10) for _ in range(2)])
    ready, labels, classes = torch.from_numpy(x), torch.from_numpy(y), data.classes
    print("samples/s of one thread, median; in brackets the ratio of the fused kernel to each")
    for hidden in ((), (512,)):
        net = ("mlp", (x.shape[1], *hidden, classes))
        torch.manual_seed(0)
        model = module(net)
        theta = nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy()
        found = {}

        def fused(net=net, theta=theta, found=found):
            found["fused"] = fused_fit(net, theta, x, y, order, lr=0.01, momentum=0.5, image=False).theta
            return order.size

        def eager(model=model, theta=theta, found=found):
            nn.utils.vector_to_parameters(torch.from_numpy(theta.copy()), model.parameters())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5, foreach=False)
            for index in torch.from_numpy(order):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(ready[index]), labels[index]).backward()
                optimizer.step()
            found["eager"] = nn.utils.parameters_to_vector(model.parameters()).detach().numpy()
            return order.size

        def peer():
            model = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.01, shuffle=False)
            for _ in range(2):
                model.partial_fit(x, y, classes=np.arange(classes))
            return order.size

        jobs = {"fused": fused, "eager torch": eager} | ({} if hidden else {"SGDClassifier": peer})
        rates = interleaved(list(jobs.values()), repeats, time.process_time)[:, 1]
        shown = "   ".join(f"{name} {rate:,.0f} ({rates[0] / rate:.2f})" for name, rate in zip(jobs, rates, strict=True))
        apart = np.abs(found["fused"] - found["eager"]).max()
        print(
            f"  {x.shape[1]} -> {list(hidden)} -> {classes}: {shown}; weights of fused and eager differ by {apart:.1e}",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("features", metavar="FEATURES.npz")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--only", choices=["accuracy", "speed"], default=None)
    options = parser.parse_args()
    torch.set_num_threads(1)
    data = datasets.load(options.features)
    if options.only != "accuracy":
        speed(data)
    if options.only != "speed":
        accuracy(data, options.rounds)


if __name__ == "__main__":
    main()
