"""Named translation sets: found, counted, in both directions."""

import pytest

from clusterformer.data.translation_corpora import find_bitext, translation_protocol
from clusterformer.errors import InputError

COUNTS = {
    "multi30k": {"train": 29_000, "valid": 1_014, "test": 1_000},
    "tatoeba": {"train": 159_626, "valid": 5_129},
    "iwslt14-part": {"train": 21_487, "valid": 7_283},
}


def test_unknown_languages_and_missing_sets_are_reported(tmp_path):
    with pytest.raises(InputError, match="multi30k is between de and en, got source_lang 'fr'"):
        find_bitext("multi30k", ("fr", "en"), tmp_path, False, "train")
    with pytest.raises(InputError, match="clusterformer prepare wmt14"):
        find_bitext("wmt14", ("en", "de"), tmp_path, False, "train")
    with pytest.raises(InputError, match="train on what is there: name iwslt14-part"):
        find_bitext("iwslt14", (None, None), tmp_path, False, "train")
    with pytest.raises(InputError, match=r"data\.raw is for multi30k, got tatoeba"):
        translation_protocol("tatoeba", raw=True)
    assert find_bitext("wmt14", ("en", "de"), tmp_path, False, "test") is None


@pytest.mark.parametrize("name", COUNTS)
def test_named_sets_have_their_counts(name, data_root):
    for split, count in COUNTS[name].items():
        found = find_bitext(name, translation_protocol(name).direction, data_root, False, split)
        assert found
        assert sum(1 for _ in found) == count


@pytest.mark.parametrize("name", ["multi30k", "tatoeba"])
def test_both_directions_have_the_same_pairs(name, data_root):
    there, back = (
        next(iter(find_bitext(name, direction, data_root, name == "multi30k", "valid")))
        for direction in (("de", "en"), ("en", "de"))
    )
    assert there[:2] == back[1::-1]
