"""Draw small tables of several sites from a table, or from the data sets and generators of scikit-learn."""

from pathlib import Path
from typing import Annotated

import numpy as np

from fnlkit.components.parameters import Natural, NotNegative, Range, SpecText, check_arguments
from fnlkit.components.spec import format_value
from fnlkit.datasets.dataset import Dataset
from fnlkit.datasets.loading import load, registry
from fnlkit.errors import InputError, nearest
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
SOURCES = (*_BUNDLED, "diabetes", *_CLASSES, *_NUMBERS)


@check_arguments
def small_table(
    *,
    source: SpecText = "breast-cancer",
    sites: Annotated[int, Range(2, 100)] = 5,
    rows: Annotated[int, Range(10, 1000)] = 60,
    sizes: NotNegative = 0.4,
    skew: NotNegative = 0.0,
    shift: NotNegative = 0.0,
    noise: NotNegative = 0.0,
    number: Natural = 0,
    where: Path,
    download: bool = False,
) -> Dataset:
    """Return a table of several sites with true labels; the field `site` of a training row is its site.

    Features have mean 0 and standard deviation 1 before they are shifted.  Each test row has the offsets and factors of a
    random site.

    Parameters
    ----------
    source : str
        One of `SOURCES`, the data sets and generators of scikit-learn, or another data set of vectors, such as a CSV file.  The
        classes of numbers are parts of equal size: halves of ``diabetes``, ``friedman``, ``friedman-2`` and ``sparse``, thirds
        of ``friedman-3`` and ``plane``, quarters of ``swiss-roll`` and ``s-curve``.  The sites of another data set are not
        used, all its rows can be drawn, and its labels count as true if it declares no true labels.
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

    Raises
    ------
    InputError
        If the data set of `source` has too few rows for the sites and 50 test rows, or has no single class per row.
    """
    if source in SOURCES:
        rng = stream(number, f"small-table {source}")
        x, y, names = _pool(source, sites * rows + TESTED, int(rng.integers(2**31)))
    else:
        table = _table(source, where=where, download=download)
        # The checksum instead of the name: the same table in another folder gives the same sites.
        rng, source = stream(number, f"small-table {table.checksum}"), format_value(table.name)
        x, y, names = _rows(table)
    site = _sites(rng, y, np.round(_scaled(rng.lognormal(0, sizes, sites)) * sites * rows), skew)
    if (site < 0).sum() < LEAST_TESTED or len(y) < sites * rows + LEAST_TESTED:
        raise InputError(
            f"small-table: {source} has {len(y):,} rows, too few for {sites} sites of {rows} rows and {LEAST_TESTED} test "
            "rows; decrease `sites` or `rows`"
        )
    of = np.where(site < 0, rng.integers(0, sites, len(y)), site)
    offset, factor = rng.normal(0, shift, (sites, x.shape[1])), np.exp(rng.normal(0, shift / 4, (sites, x.shape[1])))
    x = (x - x.mean(0)) / np.maximum(x.std(0), 1e-9) + rng.normal(0, noise, x.shape)
    x = (x * factor[of] + offset[of]).astype(np.float32)
    train = site >= 0
    options = {"source": source, "sites": sites, "rows": rows, "sizes": sizes, "skew": skew, "shift": shift, "noise": noise,
             "number": number}  # fmt: skip
    return Dataset(
        name=f"small-table({', '.join(f'{key}={value}' for key, value in options.items())})",
        kind="vector",
        y_train=y[train],
        y_test=y[~train],
        class_names=names,
        samples=lambda: (x[train], x[~train]),
        fields={"site": np.array([f"site-{number:02d}" for number in site[train]])},
    )


def _table(source, *, where, download):
    """Return another data set than scikit-learn's."""
    if source.replace("-", "").isalnum() and source not in registry() and not Path(source).exists():
        raise InputError(
            f"small-table: no source {source!r}{nearest(source, SOURCES)}; give {', '.join(SOURCES)}, or a data set such as a "
            "CSV file"
        )
    table = load(source, cache=where, download=download)
    if table.kind != "vector" or table.sample_of is not None:
        raise InputError(f"small-table: {source} is no table with one class per row; give a table, such as a CSV file")
    return table


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
