"""Draw small tables of several sites from a table, or from the data sets and generators of scikit-learn.

`python -m benchmarks.worlds` writes those of the recipe `league`.
"""

import re
from pathlib import Path

import numpy as np

from fnlkit import datasets
from fnlkit.kernels.streams import stream

# Rows of a generated table beyond those of the sites.
TESTED = 600
LEAST_TESTED = 50
_BUNDLED = {"breast-cancer": "load_breast_cancer", "wine": "load_wine", "digits": "load_digits", "iris": "load_iris"}
# Generators of classes, and of numbers of which equal shares are the classes.
_CLASSES = {
    "clusters": ("make_classification", {"n_features": 20, "n_informative": 6, "n_classes": 3, "class_sep": 1.5}),
    "shells": ("make_gaussian_quantiles", {"n_features": 6, "n_classes": 3}),
    "hastie": ("make_hastie_10_2", {}),
    "moons": ("make_moons", {"noise": 0.2}),
    "blobs": ("make_blobs", {"n_features": 10, "centers": 8, "cluster_std": 5.0}),
    "circles": ("make_circles", {"noise": 0.15, "factor": 0.5}),
}
_NUMBERS = {
    "friedman": ("make_friedman1", {"n_features": 10, "noise": 1.0}, 2),
    "swiss-roll": ("make_swiss_roll", {"noise": 0.5}, 4),
    "s-curve": ("make_s_curve", {"noise": 0.2}, 4),
    "friedman-2": ("make_friedman2", {"noise": 50.0}, 2),
    "friedman-3": ("make_friedman3", {"noise": 0.1}, 3),
    "plane": ("make_regression", {"n_features": 20, "n_informative": 8, "noise": 50.0}, 3),
    "sparse": ("make_sparse_uncorrelated", {"n_features": 10}, 2),
}
# The name of a table in the recipe: the source, and parameters of `small_table`.
_NAME = re.compile(r"([a-z0-9-]+?)((?:-(?:sites|rows|skew|shift|noise)[0-9.]+)+)\.npz")


def read_name(name):
    """Return (source, parameters) of the name of a table such as ``wine-sites4-rows30-noise1.npz``, or None."""
    if (match := _NAME.fullmatch(name)) is None:
        return None
    return match[1], {key: float(value) for key, value in re.findall(r"-([a-z]+)([0-9.]+)", match[2])}


def small_table(source, *, sites=5, rows=60, sizes=0.4, skew=0.0, shift=0.0, noise=0.0, number=0):
    """Return the arrays of an npz: a table of several sites with true labels.

    Features have mean 0 and standard deviation 1 before they are shifted.  Each test row has the offsets and factors of a
    random site.

    Parameters
    ----------
    source : str or Path
        A data set or generator of scikit-learn, or the path of a table, all of whose rows can be drawn.  The classes of numbers
        are parts of equal size.
    sites : int
    rows : int
        Mean rows of a site.  A quarter of the rows of each class stays for testing.  If a class has too few rows for the shares
        of all sites, some random sites have fewer rows.
    sizes : float >= 0
        Standard deviation of the logarithm of a site's rows.  A site has at least 10 rows.
    skew : float >= 0
        Differences of the class shares: a site's shares have the Dirichlet distribution with parameter 1 / skew.  0: equal.
    shift : float >= 0
        Standard deviation of a site's offset of each feature; the logarithm of a site's factor has a quarter of this deviation.
    noise : float >= 0
        Standard deviation of noise that is added to each feature.
    number : int >= 0
        Another number draws another table.
    """
    sites, rows = int(sites), int(rows)
    if isinstance(source, Path):
        table = datasets.load(str(source))
        # The checksum instead of the name: the same table in another folder gives the same sites.
        rng = stream(number, f"small-table {table.checksum}")
        x, y, names = _rows(table)
    else:
        rng = stream(number, f"small-table {source}")
        x, y, names = _pool(source, sites * rows + TESTED, int(rng.integers(2**31)))
    site = _sites(rng, y, np.round(_scaled(rng.lognormal(0, sizes, sites)) * sites * rows), skew)
    if (site < 0).sum() < LEAST_TESTED or len(y) < sites * rows + LEAST_TESTED:
        raise SystemExit(f"{source} has {len(y):,} rows, too few for {sites} sites of {rows} rows and {LEAST_TESTED} test rows")
    of = np.where(site < 0, rng.integers(0, sites, len(y)), site)
    offset, factor = rng.normal(0, shift, (sites, x.shape[1])), np.exp(rng.normal(0, shift / 4, (sites, x.shape[1])))
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-9) + rng.normal(0, noise, x.shape)
    x = (x * factor[of] + offset[of]).astype(np.float32)
    train = site >= 0
    return {
        "x_train": x[train],
        "y_train": y[train],
        "y_train_true": y[train],
        "x_test": x[~train],
        "y_test": y[~train],
        "class_names": np.array(names),
        "site_train": np.array([f"site-{number:02d}" for number in site[train]]),
    }


def _rows(table):
    """Return (x (n, d), y (n,), class names) of the training and test rows of a data set, with true labels if it has them."""
    train = table.y_train if table.truth is None else table.truth
    x = np.concatenate([np.asarray(part, np.float64) for part in (table.x_train, table.x_test)])
    return x, np.concatenate([train, table.y_test]), table.class_names


def _pool(source, rows, seed):
    """Return (x (n, d), y (n,), class names): all rows of a bundled data set, or `rows` rows of a generator."""
    from sklearn import datasets as sklearn

    if source in _BUNDLED:
        table = getattr(sklearn, _BUNDLED[source])()
        return table.data, table.target.astype(np.int64), [str(name) for name in table.target_names]
    if source in _CLASSES:
        make, options = _CLASSES[source]
        x, y = getattr(sklearn, make)(n_samples=rows, random_state=seed, **options)
        names, y = np.unique(y, return_inverse=True)
        return x, y.astype(np.int64), [f"class {i}" for i in range(len(names))]
    if source == "diabetes":
        (x, values), count = sklearn.load_diabetes(return_X_y=True), 2
    else:
        make, options, count = _NUMBERS[source]
        x, values = getattr(sklearn, make)(n_samples=rows, random_state=seed, **options)
    y = np.searchsorted(np.quantile(values, np.arange(1, count) / count), values)
    return x, y.astype(np.int64), [f"part {i + 1} of {count}" for i in range(count)]


def _scaled(values):
    return values / values.sum()


def _sites(rng, y, sizes, skew):
    """Return the site (n,) of each row, -1 for test rows.

    A site draws rows by the class shares of the site, as long as rows of a class remain.  If a class runs out, the sites are
    numbered at random afterwards, because those that draw last have fewer rows.
    """
    site, classes, short = np.full(len(y), -1), int(y.max()) + 1, False
    common = np.bincount(y, minlength=classes) / len(y)
    for k, size in enumerate(np.maximum(sizes, 10).astype(int)):
        shares = _scaled(common * rng.dirichlet(np.full(classes, 1 / skew))) if skew else common
        for c in range(classes):
            free = rng.permutation(np.flatnonzero((site < 0) & (y == c)))
            # A quarter of the rows of a class stays for testing.
            most = max(0, len(free) - len(y[y == c]) // 4)
            wanted = round(size * shares[c])
            site[free[: min(most, wanted)]] = k
            short |= wanted > most
    return np.append(rng.permutation(len(sizes)), -1)[site] if short else site
