"""CPU hours of the cheapest published row of each paper at full length.

    python -m benchmarks.lengths [--only TEXT]

Measures local training of FedAvg at the row's batch size with one thread on random images, in CPU time because of other load
on the machine.  The samples of a row are rounds x cohort x samples per client x local epochs.  Evaluation is not included,
and methods that train twice or send more cost more.
"""

import argparse
import time

import numpy as np
import torch

from fnlkit.datasets import Dataset
from fnlkit.datasets.partitioning import federation
from fnlkit.experiment import Experiment, Settings

# (row, network, channels, side, batch, client-rounds, samples per client, epochs, precisions, measured samples)
ROWS = [
    ("FedCorr, Table 10: CIFAR-10", "lenet5", 3, 32, 10, 10_000, 500, 5, ("fp32",), 5_000),
    ("FedLN, Table 3: Fashion-MNIST", "resnet20", 1, 28, 128, 4_800, 2_000, 1, ("fp32", "bf16"), 512),
    ("FedEFC, Table 2: MNIST", "cnn9", 1, 28, 64, 1_000, 600, 5, ("fp32", "bf16"), 256),
    ("FedDPCont, Table 2: CIFAR-10", "resnet18", 3, 32, 32, 3_000, 500, 5, ("fp32", "bf16"), 128),
    ("FLR, Table 7: CIFAR-10", "resnet18", 3, 32, 10, 10_000, 500, 5, ("fp32", "bf16"), 60),
]


def rate(network, channels, side, batch, precision, samples):
    """Return the samples per second of local training on one core."""
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (samples + 10, side, side, channels), np.uint8)
    y = rng.integers(0, 10, samples + 10)
    data = Dataset("noise", "image", y[:samples], y[samples:], list("0123456789"), lambda: (x[:samples], x[samples:]))
    fed = federation(data, "iid", clients=2, labels="true")
    settings = Settings(
        model=network,
        rounds=2,
        fraction=1.0,
        epochs=1,
        batch_size=batch,
        lr=0.01,
        eval_every=10**9,
        precision=precision,
    )
    stamps = []
    Experiment(fed, data, settings, engine="fused" if network == "lenet5" else "sequential").run(
        on_round=lambda row: stamps.append(time.process_time())
    )
    return samples / (stamps[1] - stamps[0])  # the first round compiles


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="only rows that contain this text")
    chosen = parser.parse_args().only
    torch.set_num_threads(1)
    print("row                            network   precision  samples/s   samples of a run   core hours")
    for row, network, channels, side, batch, visits, size, epochs, precisions, measured in ROWS:
        for precision in precisions if chosen.lower() in row.lower() else ():
            found, whole = rate(network, channels, side, batch, precision, measured), visits * size * epochs
            print(
                f"{row:<30} {network:<9} {precision:<9} {found:>10,.0f} {whole:>18,} {whole / found / 3600:>12.1f}", flush=True
            )


if __name__ == "__main__":
    main()
