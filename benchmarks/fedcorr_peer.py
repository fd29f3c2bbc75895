"""FedCorr's public code on a federation of fnlkit: noisy clients, labels and test accuracy by stage.

    git clone https://github.com/Xu-Jingyi/FedCorr
    python -m benchmarks.fedcorr_peer FedCorr fed.npz cifar10.npz --seed 0
    python -m benchmarks.fedcorr_peer --run run.pt

`main.py` of the public code runs unchanged with LeNet-5.  Four functions are replaced: the data set returns the images and the
partition of the federation with the same crop, flip and normalization, the noise is that of the federation, the test set is
evaluated less often, and `numpy.ogrid` returns a list as it did in old versions.  The defaults are the settings of Table 10
with the options of the public README: mixup in all stages, and beta 5.  With `--run`, the stages of a run of `fnlkit train
--eval-every` are printed in the same form.
"""

import argparse
import json
import runpy
import sys
from pathlib import Path

import numpy as np
import torch

from fnlkit.artifacts import files
from fnlkit.models import vision

# The public code's statistics for CIFAR-10.
MEAN, STD = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


class Images(torch.utils.data.Dataset):
    """Normalized images with labels; a padded crop and a flip if `pad`."""

    def __init__(self, x, y, pad):
        self.x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0))).transpose(0, 3, 1, 2).copy()
        self.targets, self.pad = y, pad
        self.scale = torch.tensor(STD)[:, None, None] * 255
        self.shift = torch.tensor(MEAN)[:, None, None] / torch.tensor(STD)[:, None, None]

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, at):
        image = self.x[at]
        if self.pad:
            row, column = torch.randint(2 * self.pad + 1, (2,)).tolist()
            image = image[:, row : row + 32, column : column + 32]
            image = image[:, :, ::-1].copy() if torch.rand(()) < 0.5 else image
        return torch.from_numpy(image) / self.scale - self.shift, int(self.targets[at])


class Grid:
    """`numpy.ogrid` that returns a list, which the public code changes; newer versions return a tuple."""

    ogrid = np.ogrid

    def __getitem__(self, key):
        return list(self.ogrid[key])


def wrong_shares(fed):
    """Return {client: samples} and the share of wrong labels of each client in %, of a federation or a run."""
    arrays = {key.removeprefix("labels/"): np.asarray(value) for key, value in fed.arrays.items()}
    offsets, order = arrays["client_offsets"], arrays["client_indices"]
    users = {k: set(order[a:b].tolist()) for k, (a, b) in enumerate(zip(offsets, offsets[1:], strict=False))}
    wrong = arrays["given"] != arrays["true"]
    return users, np.array([100 * wrong[list(users[k])].mean() for k in users])


def report(iteration, lid, noisy, level, wrong, labels_right):
    """Print the findings of an iteration of stage 1; `level` and `wrong` (N,) and `labels_right` in %."""
    tuned = level <= 10
    print(
        f"iteration {iteration}: LID {np.round(np.percentile(lid, [0, 25, 50, 75, 100]), 1)}; {noisy.sum()} clients noisy, "
        f"{(noisy & (wrong > 0)).sum()} truly; estimated level {level[noisy].mean():.1f}, "
        f"wrong labels {wrong[noisy].mean():.1f}; "
        f"{tuned.sum()} clients to fine-tune on, {(tuned & (wrong == 0)).sum()} truly clean; labels right {labels_right:.2f}",
        flush=True,
    )


def describe(path):
    """Print the stages of a run of fnlkit."""
    run = files.read(Path(path))
    _, wrong = wrong_shares(run)
    rows = [json.loads(line) for line in Path(path).with_suffix(".metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if "accuracy" in row]
    record = {key: np.asarray(run.arrays[f"record/{key}"]) for key in ("cumulative_lid", "noisy_clients", "noise_level")}
    for i, (lid, noisy, level) in enumerate(zip(*record.values(), strict=True)):
        [right] = [100 * row["label_accuracy"] for row in rows if row["client_rounds"] == (i + 1) * len(wrong)]
        report(i + 1, lid, noisy.astype(bool), 100 * level, wrong, right)
    for stage in dict.fromkeys(row["stage"] for row in rows):
        scores = [(100 * row["accuracy"], row["client_rounds"]) for row in rows if row["stage"] == stage]
        right = [100 * row["label_accuracy"] for row in rows if row["stage"] == stage][-1]
        best, at = max(scores)
        print(f"{stage}: best {best:.2f} after {at} client-rounds, last {scores[-1][0]:.2f}; labels right {right:.2f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("code", nargs="?", help="folder of the public code")
    parser.add_argument("federation", nargs="?")
    parser.add_argument("images", nargs="?")
    parser.add_argument("--run", help="a run of fnlkit to describe instead")
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--finetune", type=int, default=500)
    parser.add_argument("--usual", type=int, default=450)
    parser.add_argument("--lr", type=float, default=0.003)
    parser.add_argument("--beta", type=float, default=5)
    parser.add_argument("--no-mixup", action="store_true")
    parser.add_argument("--eval-every", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.run:
        describe(options.run)
        return
    if not options.images:
        parser.error("give the folder of the public code, a federation and the images, or --run")
    torch.set_num_threads(1)

    fed = files.read(Path(options.federation))
    users, wrong = wrong_shares(fed)
    given, true = np.asarray(fed.arrays["given"]).copy(), np.asarray(fed.arrays["true"])
    with np.load(options.images) as arrays:
        train, test = Images(arrays["x_train"], true, 4), Images(arrays["x_test"], arrays["y_test"], 0)
    print(f"labels right {100 * np.mean(given == true):.2f}, {(wrong > 0).sum()} clients noisy", flush=True)

    vision.torchvision()
    sys.path.insert(0, options.code)
    import util.dataset  # noqa: PLC0415  (from the folder of the public code)
    import util.local_training  # noqa: PLC0415
    import util.util  # noqa: PLC0415

    def get_dataset(args):
        args.device, args.num_classes = torch.device("cpu"), 10
        return train, test, users

    def labels_right():
        return 100 * np.mean(np.asarray(train.targets) == true)

    evaluate, visits, scores = util.local_training.globaltest, options.iterations * len(users), []
    calls = 0

    def globaltest(net, data, args):
        """Evaluate after each iteration and every few rounds; report an iteration when the next training has ended."""
        nonlocal calls
        calls += 1
        state = sys._getframe(1).f_globals  # the variables of main.py
        if calls > 1 and calls % len(users) == 1 and calls <= visits + 1:
            noisy = np.isin(np.arange(len(users)), state["noisy_set"])
            level = 100 * state["estimated_noisy_level"]
            report(calls // len(users), state["LID_accumulative_client"], noisy, level, wrong, labels_right())
        rounds = calls - visits
        if rounds == options.finetune + 1:
            print(f"after fine-tuning: labels right {labels_right():.2f}", flush=True)
        if calls % len(users) if rounds <= 0 else rounds % options.eval_every:
            return float("nan")
        scores.append(100 * evaluate(net, data, args))
        print(f"round {rounds}: {scores[-1]:.2f}" if rounds > 0 else f"visit {calls}: {scores[-1]:.2f}", flush=True)
        return scores[-1] / 100

    util.dataset.get_dataset = get_dataset
    util.util.add_noise = lambda args, y, users: (given.copy(), (wrong > 0).astype(int), wrong / 100)
    util.local_training.globaltest = globaltest
    np.ogrid = Grid()
    torch.Tensor.cuda = lambda tensor: tensor  # mixup calls it
    stages = {"--iteration1": options.iterations, "--rounds1": options.finetune, "--rounds2": options.usual}
    settings = {**stages, "--lr": options.lr, "--beta": options.beta, "--seed": options.seed}
    sys.argv = ["main.py", "--model", "lenet", "--iid", *(str(word) for pair in settings.items() for word in pair)]
    sys.argv += [] if options.no_mixup else ["--mixup"]
    runpy.run_path(str(Path(options.code) / "main.py"), run_name="__main__")
    print(f"seed {options.seed}: best {max(scores):.2f}, last {scores[-1]:.2f}, labels right {labels_right():.2f}")


if __name__ == "__main__":
    main()
