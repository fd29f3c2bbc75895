"""FedEFC's public code on a federation of fnlkit: test accuracy by round.

    git clone https://github.com/bgbhbf/FedEFC
    python -m benchmarks.fedefc_peer FedEFC fed.npz images.npz --method FedEFC --rounds 80 --seed 0

Partition, given labels, images, augmentation, network (LeNet-5) and settings are those of the recipe regimes-images; the
client's training, the count matrix, the corrected loss, the prestopping rule and the aggregation are the public code's.
The data set is replaced by one that crops and flips tensors, because the public code reads only the original files.
"""

import argparse
import sys
import types
from pathlib import Path

import numpy as np
import torch

from fnlkit import models
from fnlkit.artifacts import files
from fnlkit.models import vision


class Images(torch.utils.data.Dataset):
    """Standardized images with labels; a padded crop and a flip if `augment`."""

    def __init__(self, x, y, mean, std, augment, rng):
        self.data = torch.from_numpy(x.astype(np.float32) / 255).movedim(-1, 1)
        self.mean, self.std = (torch.tensor(value, dtype=torch.float32)[:, None, None] for value in (mean, std))
        self.targets, self.augment, self.rng = y, augment, rng

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, at):
        image = self.data[at]
        if self.augment:
            row, column = self.rng.integers(0, 9, 2)
            image = torch.nn.functional.pad(image, (4, 4, 4, 4))[:, row : row + 32, column : column + 32]
            image = image.flip(-1) if self.rng.random() < 0.5 else image
        return (image - self.mean) / self.std, int(self.targets[at])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", help="folder of the public code")
    parser.add_argument("federation")
    parser.add_argument("images")
    parser.add_argument("--method", choices=("FedAvg", "FedEFC"), default="FedEFC")
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--start-monitor", type=int, default=40)
    parser.add_argument("--patience", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(options.seed)
    torch.manual_seed(options.seed)

    vision.torchvision()
    sys.path.insert(0, options.code)
    sys.modules["torch.utils.tensorboard"] = types.SimpleNamespace(SummaryWriter=None)  # imported, and not needed here
    sys.argv = ["main.py"]
    import main as public  # noqa: PLC0415  (from the folder of the public code)

    # torch >= 2.1 requires this method of the public code's subset, which has none.
    public.SubsetWithTargets.__getitems__ = lambda subset, places: [subset[at] for at in places]

    fed = files.read(Path(options.federation))
    offsets, order = fed.arrays["client_offsets"], fed.arrays["client_indices"]
    users = {k: set(order[a:b].tolist()) for k, (a, b) in enumerate(zip(offsets, offsets[1:], strict=False))}
    with np.load(options.images) as arrays:
        x, x_test, y_test = arrays["x_train"], arrays["x_test"], arrays["y_test"]
    given = np.asarray(fed.arrays["given"])
    mean, std = x.reshape(-1, 3).mean(0) / 255, x.reshape(-1, 3).std(0) / 255
    train, test = Images(x, given, mean, std, True, rng), Images(x_test, y_test, mean, std, False, rng)

    def network():
        return models.build("lenet5", input_shape=(3, 32, 32), classes=10, seed=options.seed)

    args = argparse.Namespace(
        method=options.method, num_users=len(users), frac=0.5, local_ep=5, local_bs=10, lr=0.01, momentum=0.5, beta=0.0,
        model="lenet5", device=torch.device("cpu"), seed=options.seed, num_classes=10, weigth_compensate=False,
    )  # fmt: skip
    corrected = options.method == "FedEFC"
    server, spare = network(), network()
    stop, best, stalled, scores = public.LARGE_VALUE, 0.0, 0, []
    for round_number in range(options.rounds):
        cohort = rng.choice(len(users), len(users) // 2, replace=False)
        replies = [
            public.update_client(args, round_number, stop, k, server, spare, train, users, users, given, given, corrected)
            for k in cohort
        ]
        server.load_state_dict(public.FedAvg([weights for weights, _, _ in replies], [len(users[k]) for k in cohort]))
        accuracy = sum(score for _, _, score in replies) / len(cohort)
        scores.append(100 * public.globaltest(server, test, args))
        if corrected and stop == public.LARGE_VALUE and round_number > options.start_monitor:  # the rule of main.py
            stalled = 0 if accuracy > best else stalled + 1
            best = max(best, accuracy)
            if stalled == options.patience:
                stop = round_number
                print(f"correction starts after round {round_number}", flush=True)
        if round_number % 4 == 3:
            print(f"round {round_number + 1}: {scores[-1]:.2f}", flush=True)
    fifth = scores[3::4][-options.rounds // 20 :]
    print(f"{options.method}, seed {options.seed}: best {max(scores[3::4]):.2f}, late {np.mean(fifth):.2f}")


if __name__ == "__main__":
    main()
