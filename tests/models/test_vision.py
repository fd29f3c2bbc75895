"""torchvision works beside the torch that is installed, matching or not."""

import subprocess
import sys

import pytest
import torch

from fnlkit.core.errors import InputError
from fnlkit.models import vision


def fresh(code):
    return subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)


def test_torchvision_networks_and_transforms_run():
    module = vision.torchvision()
    image = torch.zeros(3, 40, 40, dtype=torch.uint8)
    assert module.transforms.Resize((8, 8))(image).shape == (3, 8, 8)
    with torch.no_grad():
        assert module.models.resnet18(weights=None).eval()(torch.zeros(1, 3, 32, 32)).shape == (1, 1000)


def test_a_fresh_process_imports_it_without_a_warning():
    done = fresh("from fnlkit.models import vision; vision.torchvision().__version__")
    assert done.returncode == 0, done.stderr


def test_fnlkit_vision_itself_imports_no_torch():
    assert fresh("import sys, fnlkit.models.vision; sys.exit('torch' in sys.modules)").returncode == 0


def test_a_missing_library_is_named(monkeypatch):
    monkeypatch.setattr(vision.importlib.util, "find_spec", lambda name: None)
    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    with pytest.raises(InputError, match=r"pip install 'fnlkit\[train\]'"):
        vision.torchvision.__wrapped__()


def test_weights_come_from_files_only(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    state = {"a": torch.ones(2)}
    torch.save({"state_dict": state, "epoch": 3}, tmp_path / "net.pth")
    assert torch.equal(vision.weights_file(str(tmp_path / "net.pth"))["a"], state["a"])
    with pytest.raises(InputError, match=r"checkpoints/net-1.pth; fetch https://example.org/net-1.pth"):
        vision.weights_file("https://example.org/net-1.pth")
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(state, tmp_path / "hub" / "checkpoints" / "net-1.pth")
    assert torch.equal(vision.weights_file("https://example.org/net-1.pth")["a"], state["a"])


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 no zip", b"not a file of torch"])
def test_damaged_weights_are_one_line(tmp_path, content):
    (tmp_path / "net.pth").write_bytes(content)
    with pytest.raises(InputError, match="cannot read weights") as error:
        vision.weights_file(str(tmp_path / "net.pth"))
    assert "\n" not in str(error.value)


def test_weights_are_never_executed(tmp_path):
    torch.save({"a": print}, tmp_path / "net.pth")
    with pytest.raises(InputError, match="cannot read weights"):
        vision.weights_file(str(tmp_path / "net.pth"))


def test_weights_are_tensors_by_name(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "net.pth")
    with pytest.raises(InputError, match="no state dictionary"):
        vision.weights_file(str(tmp_path / "net.pth"))
