"""Assert on fnlkit's schemes what the tests of Flower Datasets assert on its partitioners; see `benchmarks.peer_tests`.

The numbers of clients, samples and classes are read from Flower's test files, without running them: a partitioner of Flower and
a scheme of fnlkit have different arguments.
"""

import ast
from pathlib import Path

import numpy as np

from fnlkit.datasets.partitioning import partition
from fnlkit.errors import InputError

FOLDER = Path("datasets/flwr_datasets/partitioner")
# Test files whose partitioners have no scheme in fnlkit, and the reason.
OTHERS = {
    "continuous": "no scheme by a continuous column",
    "distribution": "no scheme by a table of shares; `file` reads any split",
    "id_to_size_fnc": "no scheme by a function of the client's number; `sizes` draws unequal sizes",
    "grouped_natural_id": "no scheme that joins several values of a column",
    "inner_dirichlet": "no scheme with given sizes and Dirichlet classes",
    "size": "no scheme by given sizes; `file` reads any split",
    "vertical_even": "columns are not divided",
    "vertical_partitioner_utils": "columns are not divided",
    "vertical_size": "columns are not divided",
    "partitioner": "an interface of Flower",
}


def count_tests(path):
    """Return the number of test functions of a file."""
    return sum(
        isinstance(node, ast.FunctionDef) and node.name.startswith("test") for node in ast.walk(ast.parse(path.read_text()))
    )


def read_cases(path, test):
    """Return the parameters of a test of Flower: the list of its decorator `parameterized.expand`."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef) and node.name == test:
            for decorator in node.decorator_list:
                if isinstance(decorator, ast.Call) and getattr(decorator.func, "attr", "") == "expand":
                    return [tuple(map(_value, case.elts)) for case in decorator.args[0].elts]
    raise SystemExit(f"{path} has no test {test} with parameters; use a checkout of adap/flower of 2026")


def _value(node):
    """Return the value of a literal, or of the list in ``np.array(list)``."""
    return ast.literal_eval(node.args[0] if isinstance(node, ast.Call) else node)


def split(n, classes, scheme, clients, seed=0, **options):
    """Return labels 0, 1, ..., 0, 1, ... (n,) and the clients' positions."""
    labels = np.arange(n) % classes
    return labels, partition(labels, classes, scheme, clients=clients, seed=seed, **options)


def each_sample_once(parts, n):
    return np.sort(np.concatenate(parts)).tolist() == list(range(n))


def refused(n, classes, scheme, clients):
    try:
        split(n, classes, scheme, clients)
    except InputError:
        return True
    return False


def iid_sizes(clients, n):
    _, parts = split(n, 2, "iid", clients)
    sizes = sorted(map(len, parts))
    return sizes == sorted(n // clients + (k < n % clients) for k in range(clients)) and each_sample_once(parts, n)


def dirichlet_sizes(clients, alpha, n, _column):
    _, parts = split(n, 3, f"dirichlet(alpha={alpha})", clients, min_samples=10)
    return min(map(len, parts)) >= 10 and each_sample_once(parts, n)


def dirichlet_by_class(clients, alpha, n, _column):
    """Return whether the seed alone, and not the order of samples, gives the number of samples of each class."""
    labels, parts = split(n, 3, f"dirichlet(alpha={alpha})", clients)
    again = partition(labels[::-1], 3, f"dirichlet(alpha={alpha})", clients=clients, seed=0)
    tables = [
        [np.bincount(y[part], minlength=3).tolist() for part in one] for y, one in ((labels, parts), (labels[::-1], again))
    ]
    other = split(n, 3, f"dirichlet(alpha={alpha})", clients, seed=1)[1]
    return tables[0] == tables[1] and [len(p) for p in parts] != [len(p) for p in other]


def negative_alpha(alpha, clients):
    return refused(100, 3, f"dirichlet(alpha={min(alpha) if isinstance(alpha, list) else alpha})", clients)


def number_of_classes(clients, per_client, n, classes):
    """Return whether a client has at most `per_client` classes, for shards that fit into the classes."""
    labels, parts = split(n, classes, f"shards(per_client={per_client})", clients)
    return max(len(set(labels[part])) for part in parts) <= per_client and each_sample_once(parts, n)


def more_clients_than_samples(clients, per_client, n):
    return refused(n, 3, f"shards(per_client={per_client})", clients)


def shard_sizes():
    """Return whether 9 shards of 113 samples have 12 or 13 samples, and clients different samples."""
    _, parts = split(113, 3, "shards(per_client=3)", 3)
    return len(parts) == 3 and sorted(map(len, parts)) == [37, 38, 38] and each_sample_once(parts, 113)


def one_client_per_value():
    names = np.array(["a", "b", "c"])[np.arange(100) % 3]
    parts = partition(np.zeros(100, int), 1, "field(name=id)", clients=None, seed=0, fields={"id": names})
    return [set(names[part]) for part in parts] == [{"a"}, {"b"}, {"c"}] and each_sample_once(parts, 100)


# File, test with the parameters (None: no parameters), assertion, and its text.
ASSERTIONS = (
    ("iid", "test_load_partition_size", iid_sizes, "equal sizes, each sample once"),
    ("iid", "test_load_partition_size_not_dividable", iid_sizes, "sizes differ by at most 1, each sample once"),
    ("iid", "test_partitioner_with_zero_partitions", lambda clients, n: refused(n, 2, "iid", clients), "0 clients are refused"),
    ("dirichlet", "test_valid_initialization", dirichlet_sizes, "at least 10 samples a client, each sample once"),
    ("dirichlet", "test_valid_initialization", dirichlet_by_class, "classes of clients depend on the seed, not on the order"),
    ("dirichlet", "test_negative_values_in_alpha", negative_alpha, "alpha below 0 is refused"),
    ("pathological", "test_correct_num_classes_when_partitioned", number_of_classes, "at most k classes a client (Flower: k)"),
    (
        "pathological",
        "test_more_partitions_than_samples_raises",
        more_clients_than_samples,
        "clients without samples are refused",
    ),
    ("shard", None, shard_sizes, "all samples in shards of equal size (Flower drops a remainder)"),
    ("natural_id", None, one_client_per_value, "one client a value, each sample once"),
)


def report(checkout):
    """Print the result of each assertion and the tests without a counterpart; return the number of failures."""
    folder, failures = checkout / FOLDER, 0
    print("\nFlower Datasets: assertions of its tests on fnlkit's schemes")
    for name, test, assertion, text in ASSERTIONS:
        path = folder / f"{name}_partitioner_test.py"
        cases = [()] if test is None else read_cases(path, test)
        passed = sum(assertion(*case) for case in cases)
        failures += len(cases) - passed
        print(f"  {passed:>3} of {len(cases):>3} pass   {name}: {text}")
    print("tests of partitioners without a scheme in fnlkit")
    for name, reason in OTHERS.items():
        path = folder / (f"{name}_test.py" if name.startswith(("vertical_p", "partitioner")) else f"{name}_partitioner_test.py")
        print(f"  {count_tests(path):>3}   {name}: {reason}")
    return failures
