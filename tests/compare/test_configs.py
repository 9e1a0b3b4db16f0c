"""Rows and columns of runs, named by what distinguishes their configurations."""

from clusterformer.compare.configs import name_rows, with_data_of

RUN = {
    "seed_everything": 0,
    "model.attention": "FullAttention",
    "model.lr": 0.001,
    "data": "Recall",
    "data.length": 512,
    "data.batch_size": 16,
    "trainer.max_steps": 100,
}


def test_mechanisms_are_rows_and_data_sets_columns() -> None:
    other = {**RUN, "model.attention": "LocalAttention", "model.attention.window": 16}
    assert name_rows([RUN, other]) == [("FullAttention", "Recall"), ("LocalAttention", "Recall")]
    sets = [{**RUN, "data": "Labelled", "data.name": name} for name in ("mr", "cr")]
    assert name_rows(sets) == [("FullAttention", "mr"), ("FullAttention", "cr")]


def test_options_of_a_model_tell_rows_of_one_mechanism_apart() -> None:
    runs = [RUN, {**RUN, "model.lr": 1.0}]
    assert name_rows(runs) == [
        ("FullAttention, lr=0.001", "Recall"),
        ("FullAttention, lr=1", "Recall"),
    ]


def test_what_all_runs_of_a_mechanism_share_does_not_name_its_rows() -> None:
    local = {**RUN, "model.attention": "LocalAttention", "model.attention.window": 16}
    runs = [RUN, local, {**local, "model.d_model": 64}, {**RUN, "model.d_model": 64}]
    assert [row for row, _ in name_rows(runs)] == [
        "FullAttention",
        "LocalAttention",
        "LocalAttention, d_model=64",
        "FullAttention, d_model=64",
    ]


def test_other_data_make_another_column_where_runs_would_share_a_cell() -> None:
    longer = {**RUN, "data.length": 2048}
    local = {**RUN, "model.attention": "LocalAttention"}
    assert name_rows([RUN, longer, local]) == [
        ("FullAttention", "Recall, length=512"),
        ("FullAttention", "Recall, length=2048"),
        ("LocalAttention", "Recall, length=512"),
    ]
    batches = {**local, "data.batch_size": 8}  # shares no cell with RUN: they stay comparable
    assert [column for _, column in name_rows([RUN, batches])] == ["Recall", "Recall"]


def test_another_training_makes_another_row_where_runs_would_share_a_cell() -> None:
    runs = [RUN, {**RUN, "trainer.max_steps": 200}, {**RUN, "seed_everything": 1}]
    rows = [row for row, _ in name_rows(runs)]
    assert rows == ["FullAttention, max_steps=100", "FullAttention, max_steps=200", rows[0]]
    means = [row for row, _ in name_rows([{**RUN, "average": number} for number in (0, 5)])]
    assert means == ["FullAttention, average=0", "FullAttention, average=5"]
    for option, values in (("epoch_steps", (50, 100)), ("batch_size", (8, 16))):
        names = name_rows([{**RUN, f"data.{option}": value} for value in values])
        assert names == [(f"FullAttention, {option}={value}", "Recall") for value in values]


def test_repetitions_are_not_told_apart() -> None:
    assert name_rows([RUN, RUN]) == [("FullAttention", "Recall")] * 2


def test_a_simple_method_is_a_row_of_its_own_whatever_the_unused_model() -> None:
    method = {**RUN, "method": "TF-IDF + linear SVM"}
    wide = {**method, "method": "majority label", "model.d_model": 64}
    assert name_rows([{**RUN, "method": None}, method, wide]) == [
        ("FullAttention", "Recall"),
        ("TF-IDF + linear SVM", "Recall"),
        ("majority label", "Recall"),
    ]


def test_a_test_on_other_data_is_in_the_row_of_its_training() -> None:
    trained = {"model.attention": "A", "model.attention.k": 1, "data": "Partner"}
    trained |= {"data.num_tokens": 16, "data.batch_size": 4, "trainer.max_steps": 9}
    other = {**trained, "data.num_tokens": 64, "data.batch_size": 1, "model.attention.k": 2}
    assert with_data_of(trained, other) == {**trained, "data.num_tokens": 64}
    same_data = {**other, "data.num_tokens": 16}
    assert with_data_of(trained, same_data) == same_data


def test_runs_that_start_from_a_run_of_their_own_seed_are_one_row() -> None:
    runs = [
        {**RUN, "seed_everything": seed, "model.init_from": f"runs/{name}/{seed + 1}"}
        for name in ("bert", "cloze")
        for seed in (0, 1)
    ]
    assert [row for row, _ in name_rows(runs[:2])] == ["FullAttention"] * 2
    rows = [row for row, _ in name_rows(runs)]
    bert, cloze = (f"FullAttention, init_from=runs/{name}" for name in ("bert", "cloze"))
    assert rows == [bert, bert, cloze, cloze]
    same_seed = [{**run, "seed_everything": 0} for run in runs[:2]]
    assert [row for row, _ in name_rows(same_seed)] == [
        "FullAttention, init_from=runs/bert/1",
        "FullAttention, init_from=runs/bert/2",
    ]
