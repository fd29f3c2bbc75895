"""Files of public repositories that a user copies: their addresses, versions and checksums.

fnlkit contains none of these files and does not download them.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

from fnlkit.artifacts import paths
from fnlkit.errors import InputError


@dataclass(frozen=True)
class Repository:
    """Version of a public git repository with labels of people.

    Attributes
    ----------
    url : str
    commit : str
    files : dict of str to str
        Path of each file that is read, to its SHA-256.
    """

    url: str
    commit: str
    files: dict[str, str]

    @property
    def folder(self) -> str:
        """Return the name of the folder that `git clone` makes."""
        return self.url.rpartition("/")[2]


_CIFAR_N = ("https://github.com/UCSC-REAL/cifar-10-100n", "49df7d8a69e355470c77c1c2f2424916325a394b")
# Data set -> its repository.
REPOSITORIES = {
    "cifar10n": Repository(
        *_CIFAR_N, {"data/CIFAR-10_human.pt": "873e69c39cb9b5e97fb6bae2d60bb59b38a5cbc31d2b868f7903dcb2b9dd2310"}
    ),
    "cifar100n": Repository(
        *_CIFAR_N,
        {
            "data/CIFAR-100_human.pt": "bd2d80409754d420292d622e15e25248ba21e37d27429efac49c8da723f44394",
            "side_info_cifar100N.csv": "22b9ca66e25a9c0663ddc415ea3a5b9063f30d434d802ccbd0f0bf3d532d19a9",
        },
    ),
    "crowdtruth": Repository(
        "https://github.com/CrowdTruth/Medical-Relation-Extraction",
        "585c158864f91d7e7666f70d3b705294186e1378",
        {
            "ground_truth_cause.csv": "31fad88e48b0a778db6b8d594d9575e687372710e3b2d2da003a33a3e5c67429",
            "ground_truth_treat.csv": "ba65cd29e7dac7ce87e6d131c840efd8fec9011903f06bfa78b8fc19199539c3",
        },
    ),
    "label-errors": Repository(
        "https://github.com/cleanlab/label-errors",
        "6d5d6b31a13216290afc40e5c6319399c4d15c06",
        {
            "mturk/cifar100_mturk.json": "b2b4fedc433e814c64fb33eff99976bbeee6355470e127b56d64bc5fb57493c0",
            "mturk/cifar10_mturk.json": "81b2c16c9eee060d6cc2390f6bbce1e0e7be0a050574be5177c9428f3596b5b5",
            "mturk/mnist_mturk.json": "448bd00fc9df262c68d50d48709d7fa3d5dc966bc66580e5df20e0dcba6e5612",
        },
    ),
    "lewidi": Repository(
        "https://github.com/Le-Wi-Di/le-wi-di.github.io",
        "45d7b06e4c36b59472d6bdf9281f7f1e395eb0e0",
        {
            "LeWiDi_2-2023/ArMIS_dataset/ArMIS_test.json": "95498bb854fe476ee33a88cfecb3b05f26e0e1baef6c1083072a56b61586c06a",
            "LeWiDi_2-2023/ArMIS_dataset/ArMIS_train.json": "549dcd92484fa916e4b8076476fba451cda09b8dca0ba501e70cf5a72c1397f7",
            "LeWiDi_2-2023/ConvAbuse_dataset/ConvAbuse_test.json": (
                "4a88c6cf2530eb3610bd1e9e7291916ad7fdaedc01dca4e68bcc3e846310afd9"
            ),
            "LeWiDi_2-2023/ConvAbuse_dataset/ConvAbuse_train.json": (
                "f68d9c1e234afaf7e582103daac4e0f362da6418be3ff38e6cce76cfa3b674fc"
            ),
            "LeWiDi_2-2023/HS-Brexit_dataset/HS-Brexit_test.json": (
                "24e5e1615818ff6e3b96e50245cfe10636ef8ec0ea51f2c2a60acb68858fd195"
            ),
            "LeWiDi_2-2023/HS-Brexit_dataset/HS-Brexit_train.json": (
                "d204d83c7b1a73f037b3aff36aac61357c08a96f96292a37ac7655eb562d81fb"
            ),
            "LeWiDi_2-2023/MD-Agreement_dataset/MD-Agreement_test.json": (
                "a30f185ece8bc99a45ce50e0311593ee1a6882a816c93f6915cabd368f3fad53"
            ),
            "LeWiDi_2-2023/MD-Agreement_dataset/MD-Agreement_train.json": (
                "0b100595f7d10fd9b4624c647af2888597472b2dea90643dc788278714f57a6d"
            ),
        },
    ),
    "security-bugs": Repository(
        "https://github.com/NWPU-IST/sbrbench",
        "9967d23d4154618767cf5a4a4b0440e5806ec29b",
        {
            "Clean_sbr_datasets/Ambari.csv": "b4eda741490617a92c04011eeeee5493f148b2d819c01fbc8600cf6c9e0e20f8",
            "Clean_sbr_datasets/Camel.csv": "72df29ccceb1838740ce5992b7bf5f083ba816f084165ff155208b5db63fc602",
            "Clean_sbr_datasets/Derby.csv": "b8ce37214c72128ec1d73f6294048ddc3b61d5c19c90e4cb8630378d2eb60964",
            "Clean_sbr_datasets/Wicket.csv": "cb8d2f0add3de2b361bc1da3c3b48a9cfe33378305fc44cc112fd134263e5cbc",
            "Noisy_sbr_datasets/Ambari.csv": "db336a9e23a354f5878ad014e212323ea61263bd326d07dbd22382c1300cbe53",
            "Noisy_sbr_datasets/Camel.csv": "47cb5a5babe1bd7c72dcc49a6ee908df927dddb1a4e999ba55c80617a90cbceb",
            "Noisy_sbr_datasets/Derby.csv": "d27db5a98e0a438781b116af46a88a8a98dc2574dd9985deec1d1aee128f7e3d",
            "Noisy_sbr_datasets/Wicket.csv": "08df28ff0c8084377fb226004f5510699f2c0930451934ec7214becf5877735f",
        },
    ),
    "varierr": Repository(
        "https://github.com/mainlp/VariErr-NLI",
        "b2cbdd3bc3ca2a618fc16ac078f471623152c923",
        {"varierr.json": "c8f9a634a69d72a6c390047ac242562b80a8caac08db19714db3f98bd40e13ea"},
    ),
}


def checked_file(name: str, file: str, *, where: Path, path: str = "") -> Path:
    """Return the path of a file of a repository after a comparison of its SHA-256.

    Parameters
    ----------
    name : str
        A key of `REPOSITORIES`.
    file : str
        Path in the repository.
    where : pathlib.Path
        The cache folder.
    path : str
        Folder of the repository.  Default: the folder with its name in the cache folder.

    Raises
    ------
    InputError
        If the file is missing, or differs from the published file.  The message contains the step to obtain it.
    """
    source = REPOSITORIES[name]
    folder = paths.resolve(path) if path else where / source.folder
    place, shown = folder / file, paths.display_path(folder)
    if not place.is_file():
        raise InputError(
            f"{name}: no {file} in {shown}; get it by `git clone {source.url} {shown}`, or name the folder of your copy "
            "by `path`"
        )
    with open(place, "rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if digest != source.files[file]:
        raise InputError(
            f"{paths.display_path(place)}: SHA-256 {digest[:12]}... is not that of the published file, "
            f"{source.files[file][:12]}...; get that version by `git -C {shown} checkout -f {source.commit[:12]}`"
        )
    return place
