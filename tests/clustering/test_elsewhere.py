"""NeuralClustering inside other libraries: BERTopic, dask-ml, ONNX Runtime."""

import warnings
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.datasets import make_blobs
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline

from clusterformer.clustering import NeuralClustering

WORDS = ["planet orbit rocket moon", "goal hockey team season", "engine car wheel brake"]


def small(**options: object) -> NeuralClustering:
    return NeuralClustering(3, **({"max_iter": 60, "random_state": 0} | options))


@pytest.mark.slow
@pytest.mark.parametrize("min_probability", [pytest.param(0.0, marks=pytest.mark.slow), 0.9])
def test_onnxruntime_predicts_the_same_for_any_number_of_points(
    min_probability: float, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime")
    x = make_blobs(120, n_features=4, centers=3, cluster_std=3.0, random_state=0)[0]
    x = x.astype(np.float32)
    fitted = small(hidden=8, min_probability=min_probability).fit(x)
    with pytest.raises(FileNotFoundError, match=r"no such directory to write to: .*none'"):
        fitted.export_onnx(tmp_path / "none" / "m.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        fitted.export_onnx(tmp_path / "m.onnx")
    assert capfd.readouterr() == ("", "")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx")
    for rows in (x, x[:1], x[:7]):
        clusters, memberships = session.run(["cluster", "probability"], {"points": rows})
        np.testing.assert_array_equal(clusters, fitted.predict(rows))
        np.testing.assert_allclose(memberships, fitted.predict_proba(rows), atol=1e-5)


@pytest.mark.slow
def test_bertopic_takes_it_for_its_clustering() -> None:
    bertopic = pytest.importorskip("bertopic")
    from bertopic.vectorizers import ClassTfidfTransformer
    from sklearn.feature_extraction.text import CountVectorizer

    vectors, y = make_blobs(90, n_features=8, centers=3, random_state=0)
    random = np.random.default_rng(0)
    texts = [" ".join(random.choice(WORDS[group].split(), 6)) for group in y]
    model = bertopic.BERTopic(
        embedding_model=bertopic.backend.BaseEmbedder(),
        umap_model=PCA(4),
        hdbscan_model=small(),
        vectorizer_model=CountVectorizer(),
        ctfidf_model=ClassTfidfTransformer(),
    )
    topics, _ = model.fit_transform(texts, vectors)
    assert adjusted_rand_score(y, topics) > 0.95
    for topic in set(topics):
        group = y[topics.index(topic)]
        assert {word for word, _ in model.get_topic(topic) if word} <= set(WORDS[group].split())
    found, _ = model.transform(texts[:9], vectors[:9])
    assert list(found) == topics[:9]


def test_a_pipeline_reduces_and_clusters() -> None:
    x, y = make_blobs(120, n_features=8, centers=3, random_state=0)
    weights = np.ones(120)
    weights[:10] = 0.0
    pipeline = make_pipeline(PCA(4), small()).fit(x, neuralclustering__sample_weight=weights)
    assert adjusted_rand_score(y, pipeline.predict(x)) > 0.95


@pytest.mark.slow
def test_dask_feeds_it_in_parts_and_predicts_in_parallel() -> None:
    array = pytest.importorskip("dask.array")
    wrappers = pytest.importorskip("dask_ml.wrappers")
    x, y = make_blobs(3000, n_features=4, centers=3, cluster_std=0.5, random_state=0)
    parts = array.from_array(x, chunks=(1000, 4))
    streamed = wrappers.Incremental(small(batch_size=256)).fit(parts)
    assert adjusted_rand_score(y, np.asarray(streamed.predict(parts))) > 0.95
    fitted = small().fit(x)
    parallel = wrappers.ParallelPostFit(fitted).predict(parts)
    assert parallel.numblocks == (3,)
    np.testing.assert_array_equal(parallel.compute(), fitted.predict(x))
