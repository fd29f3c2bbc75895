"""Check both messages of a site: why no data can have such sums or counts."""

import numpy as np

from fnlkit.audits import rounding
from fnlkit.audits.messages import LEAST, SIZES, TABLES, bound_of, dimensions
from fnlkit.audits.server.heads import within_classes
from fnlkit.audits.server.input_differences import is_covariance


def impossible(first: dict[str, np.ndarray], classes: int, most: int, columns: tuple[int, int]) -> str:
    """Explain why no data can have the sums of a first file; "" if some can.

    Parameters
    ----------
    first : dict of arrays
        From `fnlkit.audits.site.summaries.summarize`.
    classes, most : int
        Number of classes, and the largest number of samples of a site.
    columns : (int, int)
        As returned by `fnlkit.audits.messages.described_columns`.
    """
    counts, n = np.asarray(first["counts"]), int(np.sum(first["counts"]))
    size = first["sums"].shape[1] if first["sums"].ndim == 2 else -1
    shapes = {"counts": (classes,), "withheld": (classes,), "sums": (classes, size), "moments": (size, size), "width": (),
              "observations": (), "columns": (5, columns[0]), "class_columns": (2, classes, columns[1])}  # fmt: skip
    for name, shape in shapes.items():
        if first[name].shape != shape:
            return f"{name} has the shape {first[name].shape} instead of {shape}"
    if (counts < 0).any() or not 0 <= n <= most:
        return f"the counts sum to {n:,}, and a site of this project has at most {most:,} samples"
    if ((counts > 0) & (counts < LEAST)).any():
        return f"a class has fewer than {LEAST} samples, and such classes are withheld"
    if not min(n, 1) <= int(first["observations"]) <= n:
        return f"{int(first['observations']):,} of {n:,} samples are independent, which is not possible"
    width = int(first["width"])
    if not 0 < width <= SIZES[-1] or size != dimensions(n, width):
        return f"the sums have {size} features, and {n:,} samples may have {dimensions(n, max(1, min(width, SIZES[-1])))}"
    bound = bound_of(width) * (1 + 1e-9)
    if (np.linalg.norm(first["sums"], axis=1) > counts * bound + 1e-9).any():
        return "a class sum is longer than that many clipped samples can be"
    if np.trace(first["moments"]) > n * bound**2 + 1e-9 or not np.allclose(first["moments"], first["moments"].T):
        return "the second moments are larger than those of clipped samples, or not symmetric"
    if size and not is_covariance(within_classes(first)):
        return "a variance within the classes is negative"
    if (first["columns"][1] < 0).any() or (first["class_columns"][1] < 0).any():
        return "a standard deviation is negative"
    if (np.diff(first["columns"][2:], axis=0) < 0).any():
        return "the quantiles of a column decrease"
    return ""


def implausible(second: dict[str, np.ndarray], first: dict[str, np.ndarray], changes: int, side: int) -> str:
    """Explain why no data with the sums of a first file can have a second file; "" if some can.

    Parameters
    ----------
    second, first : dict of arrays
    changes, side : int
        Numbers of changes of the inputs, and of features of their coarse description.
    """
    counts, classes = first["counts"], len(first["counts"])
    n, shapes = int(counts.sum()), {name: values.shape for name, values in second.items() if values.shape}
    single = {*TABLES, *(f"{name}_wrong" for name in TABLES), "certain", "class_means", "covariances"}
    described = shapes.get("class_means"), shapes.get("covariances")
    if set(shapes) != single or described != ((changes, classes, side), (changes, side, side)):
        return "an array has a shape that no second file has"
    for name in TABLES:
        cells, wrong = second[name], second[f"{name}_wrong"]
        if cells.shape != (classes, classes) or wrong.shape != (classes,):
            return f"{name} has no counts of {classes} by {classes} classes"
        if (cells < 0).any() or (wrong < 0).any() or (cells % rounding.STEP).any() or (wrong % rounding.STEP).any():
            return f"{name} has counts that are no multiples of {rounding.STEP}"
        if np.diag(cells).any() or (rounding.bounds_of(cells)[0] > counts).any() or (wrong > counts + rounding.AWAY).any():
            return f"{name} does not fit the class counts of the first file"
    if not 0 <= int(second["chosen"]) < len(second["covariances"]):
        return "the change of the inputs is none of those that were compared"
    if not 0 <= int(second["low"]) <= int(second["high"]) < n + rounding.STEP:
        return "the range of wrong labels is no range within the number of samples"
    if int(second["supported"]) < 0 or not (0 <= second["certain"]).all() or (second["certain"] > n + rounding.AWAY).any():
        return "a number of labels is negative or larger than the number of samples"
    if int(second["doubted_wrong"].sum()) > n + rounding.AWAY * classes or second["certain"].shape != (2,):
        return "more labels are doubted than the first file has samples"
    if not all(map(is_covariance, second["covariances"])):
        return "a covariance of the inputs is not symmetric, or a variance is negative"
    return ""
