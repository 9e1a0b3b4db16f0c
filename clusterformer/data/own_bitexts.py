"""The user's own parallel files, one pair of files a part."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from clusterformer.data.bitext import Bitext
from clusterformer.data.named_sets import Split
from clusterformer.errors import InputError


class OwnBitexts:
    """Sentences and their translations in files of the user's.

    Args:
        files: Path of the sentences and path of their translations for each part; None where there
            is no such file.

    Raises:
        InputError: if one file of a pair is missing, or training files where there are others.
    """

    def __init__(self, files: Mapping[Split, tuple[str | None, str | None]]) -> None:
        self._files = files
        for split, paths in files.items():
            if None in paths and (split == "train" or any(paths)):
                raise InputError(f"own files need both {split}_source and {split}_target")

    def find(self, split: Split) -> Bitext | None:
        """Return the files of a part; None where there are none."""
        source, target = self._files[split]
        if source is None or target is None:
            return None
        return Bitext(Path(source).expanduser(), Path(target).expanduser())
