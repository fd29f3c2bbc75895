"""Time the training of a part of a pretrained network against a loop over clients in eager PyTorch.

    python -m benchmarks.pretrained
    python -m benchmarks.pretrained --table RUNS.csv
    python -m benchmarks.pretrained --data DIR --images CIFAR10.npz -o FOLDER

The head is compared with the same network on a stored array of features.  The second command prints the accuracies of the
recipe `pretrained` from the table that `fnlkit reproduce pretrained --tidy RUNS.csv` wrote.  The third one writes the data sets
of the recipe: DIR contains cifar-10-100n/ of github.com/UCSC-REAL and yoruba/ (Hedderich 2020) as their authors publish them,
and CIFAR10.npz all images of CIFAR-10 in their order.
"""

import argparse
import csv
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import fnlkit
from fnlkit.artifacts import files
from fnlkit.encoders.embed import embed
from fnlkit.encoders.encoding import open_encoder
from fnlkit.encoders.pretrained import train_lora

BACKBONE = "efficientnet-lite0(size=64)"
CLIENTS, SAMPLES, BATCH, CLASSES, LR, MOMENTUM = 8, 100, 10, 10, 0.01, 0.5
FIRST, COUNT = 40_000, 8_000  # images of the recipe
PARTS = {"last block": "last(n=1)", "LoRA, rank 8": "lora(rank=8)"}
HEAD_SAMPLES, HEAD_ROUNDS = 100, 300


def speed_of_fnlkit(federation, model, rounds, **more):
    """Return the samples per second of the rounds after the first one, which compiles and encodes."""
    options = {"rounds": rounds, "fraction": 1.0, "epochs": 1, "batch_size": BATCH, "lr": LR, "momentum": MOMENTUM} | more
    run = fnlkit.train(federation, model=model, augment="none", eval_every=10**6, say=None, **options)
    times = run.meta["machine"]["row_seconds"]
    return len(federation.client_indices) * (rounds - 1) / (times[rounds - 1] - times[0])


def random_photographs(folder, name, samples):
    """Return a federation of random images, the images (n, 32, 32, 3) and the labels (n,)."""
    place, rng = Path(folder) / f"{name}.npz", np.random.default_rng(0)
    x = rng.integers(0, 256, (CLIENTS * samples, 32, 32, 3), dtype=np.uint8)
    y = np.arange(len(x)) % CLASSES
    np.savez(place, x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    return fnlkit.partition(str(place), clients=CLIENTS, labels="true", say=None), x, y


def measure_head(folder):
    """Print the speed of a head on a backbone, and of the same network on a stored array of its features."""
    images, x, y = random_photographs(folder, "many", HEAD_SAMPLES)
    features = np.asarray(embed(SimpleNamespace(x_train=x, kind="image"), BACKBONE))
    np.savez(f"{folder}/features.npz", x_train=features, y_train=y, x_test=features[:10], y_test=y[:10])
    array = fnlkit.partition(f"{folder}/features.npz", clients=CLIENTS, labels="true", say=None)
    head = {"model": f"pretrained(backbone={BACKBONE}, train=head)"}, {"model": "mlp(hidden=[])", "backbone": "none"}
    speeds = [[speed_of_fnlkit(data, rounds=HEAD_ROUNDS, **how) for data, how in zip((images, array), head, strict=True)]
              for _ in range(3)]  # fmt: skip
    ours, other = np.median(speeds, 0)
    print(f"{'head':14} {ours:10.0f} {other:10.0f} {ours / other:7.2f}   stored array of features", flush=True)


def speed_of_loop(x, y, train, rounds):
    """Return the samples per second of a loop over clients: each trains its own copy of the trainable part."""
    encoder = open_encoder(BACKBONE).requires_grad_(False)
    if train.startswith("lora"):
        train_lora(encoder, rank=8)  # peft cannot copy the convolutions of this network
    elif train.startswith("last"):
        net = encoder.module.net
        for part in (net._blocks[-1], net._conv_head, net._bn1):
            part.requires_grad_(True)
    head = torch.nn.Linear(1280, CLASSES)
    trained = [p for p in (*encoder.parameters(), *head.parameters()) if p.requires_grad]
    scale, criterion = 1280**0.5, torch.nn.CrossEntropyLoss()
    start, seconds = [p.detach().clone() for p in trained], 0.0
    for turn in range(rounds):
        begun, total = time.perf_counter(), [torch.zeros_like(p) for p in trained]
        for k in range(CLIENTS):
            with torch.no_grad():
                for p, value in zip(trained, start, strict=True):
                    p.copy_(value)
            optimizer = torch.optim.SGD(trained, lr=LR, momentum=MOMENTUM)
            for at in range(k * SAMPLES, (k + 1) * SAMPLES, BATCH):
                optimizer.zero_grad()
                criterion(head(encoder(x[at : at + BATCH]) * scale), y[at : at + BATCH]).backward()
                optimizer.step()
            for value, p in zip(total, trained, strict=True):
                value += p.detach() / CLIENTS
        start = total
        seconds += (time.perf_counter() - begun) * (turn > 0)
    return CLIENTS * SAMPLES * (rounds - 1) / seconds


def measure(rounds):
    with tempfile.TemporaryDirectory() as folder:
        print(f"samples/s, {CLIENTS} clients, batch {BATCH}, {BACKBONE}")
        print(f"{'trained part':14} {'fnlkit':>10} {'other':>10} {'ratio':>7}   other")
        measure_head(folder)
        federation, x, y = random_photographs(folder, "photos", SAMPLES)
        tensors = torch.from_numpy(x).movedim(-1, 1).float() / 255, torch.from_numpy(y)
        for name, train in PARTS.items():
            ours = speed_of_fnlkit(federation, f"pretrained(backbone={BACKBONE}, train={train})", rounds)
            loop = speed_of_loop(*tensors, train, rounds)
            print(f"{name:14} {ours:10.1f} {loop:10.1f} {ours / loop:7.2f}   loop over clients", flush=True)


def print_table(table):
    """Print accuracies by method and regime, and the closed share of the gap between FedAvg and true labels."""
    late, seeds = {}, {}
    with open(table, encoding="utf-8", newline="") as file:
        runs = list(csv.DictReader(file))
    found = {}
    for run in runs:
        score = run.get("accuracy_late_percent") or run["agreement_late_percent"]
        found.setdefault((run.get("name") or run["option_method"], run["regime"]), []).append(float(score))
    for (method, regime), values in found.items():
        late.setdefault(method, {})[regime] = float(np.mean(values))
        seeds.setdefault(regime, set()).add(len(values))
    regimes = list(seeds)
    columns = [regime.partition(":")[0] for regime in regimes]

    def row(name, values, digits):
        texts = [f"{values[each]:.{digits}f}" if each in values else "-" for each in regimes]
        print(f"{name:22}" + "".join(f"{text:>11}" for text in texts))

    print("accuracy in %, mean of the last fifth of the evaluations")
    print(f"{'':22}" + "".join(f"{name:>11}" for name in columns))
    for method, values in late.items():
        row(method, values, 1)
    print(f"{'seeds':22}" + "".join(f"{'-'.join(map(str, sorted(seeds[each]))):>11}" for each in regimes))
    print("\nclosed share of the gap between fedavg and oracle in %")
    plain, true = late["fedavg"], late["oracle"]
    for method, values in late.items():
        if method not in ("fedavg", "oracle"):
            row(method, {each: 100 * (v - plain[each]) / (true[each] - plain[each]) for each, v in values.items()}, 0)


def write_data(data, images, output):
    """Write photos.npz, photos-people.npz and titles.csv."""
    output.mkdir(parents=True, exist_ok=True)
    arrays, part = files.read_arrays(images, max_bytes=2**30), slice(FIRST, FIRST + COUNT)
    test = {"x_test": arrays["x_test"][2000:4000], "y_test": arrays["y_test"][2000:4000]}
    x, true = arrays["x_train"][part], arrays["y_train"][part]
    np.savez(output / "photos.npz", x_train=x, y_train=true, **test)
    people = files.read_arrays(data / "cifar-10-100n/data/CIFAR-10_human.pt", max_bytes=2**28)
    if not np.array_equal(people["clean_label"][part], true):
        raise SystemExit(f"{images}: expected the training images of CIFAR-10 in their order")
    given = people["worse_label"][part].astype(np.int64)
    np.savez(output / "photos-people.npz", x_train=x, y_train=given, y_train_true=true, **test)

    def rows(name):
        with open(data / "yoruba" / f"{name}.tsv", encoding="utf-8") as lines:
            return list(csv.DictReader(lines, delimiter="\t"))

    clean = {row["news_title"]: row["label"] for row in rows("train_clean")}
    with open(output / "titles.csv", "w", encoding="utf-8", newline="") as target:
        table = csv.writer(target)
        table.writerow(["note", "label", "true_label", "split"])
        for row in rows("train_clean_noisy_labels"):
            table.writerow([row["news_title"], row["label"], clean[row["news_title"]], "train"])
        for row in (*rows("test"), *rows("dev")):
            table.writerow([row["news_title"], row["label"], row["label"], "test"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--table", type=Path, help="tidy table of the runs")
    parser.add_argument("--data", type=Path, help="folder with cifar-10-100n/ and yoruba/")
    parser.add_argument("--images", help="CIFAR-10 as npz")
    parser.add_argument("-o", "--output", type=Path, help="folder of the runs of the recipe")
    options = parser.parse_args()
    if options.data:
        write_data(options.data, options.images, options.output)
    elif options.table:
        print_table(str(options.table))
    else:
        measure(options.rounds)


if __name__ == "__main__":
    main()
