"""doctor finds what works and, above all, what does not."""

import json
import os
import subprocess
import sys
from importlib import metadata

import pytest

from fnlkit.federated.engines import ENGINES
from fnlkit.pipeline import doctor
from tests.commands import fnlkit, succeed


def test_engines_are_tried_and_agree(tmp_path):
    found = json.loads(succeed("fnlkit doctor --json", tmp_path).stdout)
    assert [one["engine"] for one in found["engines"] if one["device"] == "cpu"] == list(ENGINES)
    ran = {one["engine"]: one for one in found["engines"] if one["runs"]}
    assert {"sequential", "stacked", "workers", "fused"} <= set(ran) and found["fit"] and not found["broken"]
    assert ran["sequential"]["difference"] == 0 and ran["workers"]["difference"] == 0
    assert all(one["why"] for one in found["engines"] if not one["runs"])


def test_version_prints_the_versions_of_the_libraries(tmp_path, monkeypatch):
    lines = fnlkit("fnlkit --version", tmp_path).stdout.splitlines()
    assert lines[0] == f"fnlkit {metadata.version('fnlkit')}" and f"torch {metadata.version('torch')}" in lines
    before = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "scipy" else before(name))
    assert "scipy not installed" in fnlkit("fnlkit --version", tmp_path).stdout.splitlines()


def test_an_engine_that_disagrees_is_broken(monkeypatch, tmp_path):
    """Training is replaced: what is tested is the judgment of what comes out of it."""
    import torch

    def tiny(federation, engine, device):
        if engine == "stacked":
            return torch.tensor([1.0, 1.1])
        if engine == "workers":
            raise OSError("no such\ndevice")
        return torch.tensor([1.0, float("nan") if engine == "fused" else 1.0])

    monkeypatch.setattr(doctor, "_tiny", tiny)
    done = fnlkit("fnlkit doctor", tmp_path)
    assert done.returncode == 1 and "fnlkit: error: 3 broken, the first: engine stacked" in done.stderr
    assert "engine workers on cpu fails: OSError: no such device" in done.stdout and "engine fused on cpu" in done.stdout


@pytest.mark.parametrize(
    ("library", "version", "words"), [("rich", None, "rich is not installed"), ("torch", "0.1", "torch is 0.1, fnlkit needs")]
)
def test_a_library_that_does_not_fit_is_broken(library, version, words, monkeypatch, tmp_path):
    before = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: version if name == library else before(name))
    done = fnlkit("fnlkit doctor --json", tmp_path)
    facts = json.loads(done.stdout)
    assert done.returncode == 1 and not facts["fit"] and words in facts["broken"][0]
    assert facts["engines"] == []


@pytest.mark.slow
def test_compile_covers_every_kernel():
    """In a process of its own, because kernels that another test has called would count."""
    code = """
import json
from fnlkit.pipeline.compiling import list_cached_functions, compile_kernels
found = compile_kernels()
used = {name: len(function.signatures) for name, function in list_cached_functions().items()}
print(json.dumps([found, used]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found, used = json.loads(done.stdout)
    entries = {name for name in used if ".fused." not in name or name.rsplit(".", 1)[1] in ("fit", "predict")}
    assert len(entries) > 20 and not {name for name in entries if not used[name]}
    assert found["compiled"] + found["loaded"] >= len(entries) and os.path.isdir(found["folder"])


def test_compile_prints_numbers_and_folder_and_names_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    from fnlkit.pipeline import compiling

    monkeypatch.setattr(compiling, "_call_numerical", lambda real: None)
    monkeypatch.setattr(compiling, "_call_fused", lambda: None)
    monkeypatch.setattr(compiling, "cache_folders", lambda: (tmp_path / "missing", tmp_path))
    facts = json.loads(succeed("fnlkit doctor --compile --json", tmp_path).stdout)
    assert facts["folder"] == str(tmp_path) and facts.keys() == {"compiled", "loaded", "seconds", "folder"}
    monkeypatch.setattr(compiling, "cache_folders", lambda: (tmp_path / "missing",))
    done = fnlkit("fnlkit doctor --compile", tmp_path)
    assert done.returncode == 1 and "missing" in done.stderr and "NUMBA_CACHE_DIR" in done.stderr
