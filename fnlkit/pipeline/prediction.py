"""Functions behind `fnlkit predict` and `fnlkit export`, for use from Python."""

import os
from collections.abc import Callable

from fnlkit.artifacts.run import Run
from fnlkit.artifacts.sheets import Sheet
from fnlkit.core.errors import InputError
from fnlkit.pipeline.inputs import FilePath, Model, is_path
from fnlkit.results.predicted import describe_samples, probabilities


def predict(
    run: Model,
    data: FilePath | None = None,
    *,
    unlabeled: bool = False,
    every: bool = False,
    skip_damaged: bool = False,
    trust: bool = False,
    say: Callable[[str], object] | None = None,
) -> Sheet:
    """Predict the classes of new samples.

    The result is a table with the columns sample, class, name and probability.

    Parameters
    ----------
    run : Run or path
    data : path, optional
        Samples as for `fnlkit predict`: an npy or npz, a folder of images or sounds, or a table.
    unlabeled : bool
        Predict the samples without a label of `data`, or of the run's own data set.
    every : bool
        Add a column with the probability for each class.
    skip_damaged : bool
        Leave out images and sounds that cannot be read; `say` receives their names.
    trust : bool
        Run code of a user that the run's file names.
    say : callable(str), optional
        Receives notes, such as the number of rows with a category that no training row has.

    Returns
    -------
    fnlkit.artifacts.sheets.Sheet
        With `write`, `csv` and `to_pandas`.

    Raises
    ------
    InputError
    """
    run = _open_run(run, trust)
    if data is None and not unlabeled:
        raise InputError("name DATA, or `unlabeled` for samples of the run's own data set that have no label")
    if data is not None and not is_path(data):
        raise InputError(f"is {type(data).__name__}; save it, as by np.save('new.npy', x), and give the path", parameter="data")
    source = None if data is None else os.fspath(data)
    samples, predicted = probabilities(run, source, unlabeled=unlabeled, skip_damaged=skip_damaged, say=say)
    words, labels = describe_samples(run)["class_names"], predicted.argmax(1).tolist()
    rows = [
        [sample, label, words[label], float(row[label]), *(row.tolist() if every else [])]
        for sample, row, label in zip(samples, predicted, labels, strict=True)
    ]
    return Sheet(["sample", "class", "name", "probability", *(words if every else [])], rows)


def export(run: Model, target: FilePath, *, trust: bool = False) -> float | None:
    """Export a run's model as ONNX, torch.export program, or state dictionary.

    The suffix of `target` selects the format.

    Parameters
    ----------
    run : Run or path
    target : path
        ``model.onnx``, ``model.pt2`` or ``state_dict.pt``.
    trust : bool
        Run code of a user that the run's file names.

    Returns
    -------
    float or None
        Largest difference between logits of the exported file and logits of the network. None if the file cannot be run.

    Raises
    ------
    InputError
        If the suffix is unknown, or if packages of the extra `export` are missing.
    """
    from fnlkit.results.export import export

    return export(_open_run(run, trust), os.fspath(target))


def _open_run(run, trust):
    return Run.read(os.fspath(run), trust=trust, state=False) if isinstance(run, (str, os.PathLike)) else run
