"""Files of a clustering on a disk that is full."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from forked import FORK
from numpy.typing import NDArray

from clusterformer.bench.cluster_files import write_labels


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 KiB; a limit of bytes a file would not do, as space is found missing later."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


class Even:
    """A clustering whose points are in all of 100 clusters alike."""

    def predict_proba(self, points: NDArray) -> NDArray:
        return np.full((len(points), 100), 0.01, np.float32)


def write_in_vain(disk: Path) -> None:
    with pytest.raises(OSError, match=r"No space left on device: .*memberships\.npy"):
        write_labels(disk, Even(), np.zeros((500, 2)))


def test_a_full_disk_is_an_error_and_leaves_no_half_file(disk: Path) -> None:
    process = FORK.Process(target=write_in_vain, args=(disk,))  # a bus error would end the tests
    process.start()
    process.join()
    assert process.exitcode == 0
    assert not list(disk.iterdir())


def test_memberships_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_labels(tmp_path, Even(), np.zeros((5, 2)))
    found = np.load(tmp_path / "memberships.npy")
    assert found.dtype == np.float32
    assert np.array_equal(found, Even().predict_proba(found))
