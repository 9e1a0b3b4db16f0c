"""Files and folders that are written whole or not at all, on a disk that is full."""

from pathlib import Path

import numpy as np
import pytest
import torch
from full_disk import limited_files

from clusterformer.data.cache import cached_folder
from clusterformer.errors import InputError
from clusterformer.export.folder import whole_model
from clusterformer.whole_files import replacing, whole_folder, write_text


def test_a_file_that_does_not_fit_is_named_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    write_text(path, "old")
    with limited_files(10_000), pytest.raises(OSError, match="File too large") as refused:
        write_text(path, "new" * 10_000)
    assert refused.value.filename == str(path)
    assert [found.name for found in tmp_path.iterdir()] == ["results.json"]
    assert path.read_text() == "old"


def test_an_error_that_names_its_own_file_keeps_it(tmp_path: Path) -> None:
    other = tmp_path / "other"
    with pytest.raises(OSError, match="No such file") as refused, replacing(tmp_path / "file"):
        other.read_text()
    assert refused.value.filename == str(other)


def test_an_error_of_the_partial_file_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError) as refused:
        write_text(tmp_path / "taken", "new")
    assert refused.value.filename == str(tmp_path / "taken")
    with pytest.raises(FileNotFoundError) as refused, whole_folder(tmp_path / "model") as draft:
        (draft / "none" / "weights").write_text("")
    assert refused.value.filename == str(tmp_path / "model" / "none" / "weights")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as refused, whole_folder(tmp_path / "file" / "model"):
        pass
    assert refused.value.filename == str(tmp_path / "file" / "model")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "taken"]


@pytest.mark.parametrize("size", [15_000, 1_000_000])
def test_a_folder_of_the_cache_that_does_not_fit_is_named(tmp_path: Path, size: int) -> None:
    def fill(draft: Path) -> None:
        np.save(draft / "vectors.npy", np.zeros(size, dtype=np.int8))

    with limited_files(10_000), pytest.raises(OSError, match=r"written|too large") as refused:
        cached_folder(tmp_path / "done", fill)
    assert refused.value.filename == str(tmp_path / "done")
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_an_export_that_does_not_fit_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    from safetensors.torch import save_file

    folder = tmp_path / "exported"
    with (
        limited_files(10_000),
        pytest.raises(InputError, match=r"exported: cannot be written: .*File too large"),
        whole_model(folder) as draft,
    ):
        save_file({"weight": torch.zeros(10_000)}, draft / "model.safetensors")
    assert not list(tmp_path.iterdir())
