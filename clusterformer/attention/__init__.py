"""Attention mechanisms under one contract.

A new file in this folder with a subclass of `AttentionCore` is a new mechanism: in Python, in
configurations and on the command line. Type checkers and editors read the list below; a test
compares it with the folder.

Examples:
    >>> from clusterformer.attention import MultiHeadAttention, NeuralClusteringAttention
"""

from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from clusterformer.attention.base import AttentionCore, Cache
from clusterformer.attention.grouping import Grouping
from clusterformer.attention.multi_head import Attended, Memory, MultiHeadAttention
from clusterformer.attention.neural_clustering import PAPER_FORM

if TYPE_CHECKING:
    from clusterformer.attention.block_top_k import BlockTopKAttention
    from clusterformer.attention.centroid import CentroidAttention
    from clusterformer.attention.clustered import ClusteredAttention, ImprovedClusteredAttention
    from clusterformer.attention.full import FullAttention
    from clusterformer.attention.indexer import IndexerAttention
    from clusterformer.attention.key_clustering import KeyClusteringAttention
    from clusterformer.attention.local import LocalAttention
    from clusterformer.attention.multipole import MultipoleAttention
    from clusterformer.attention.native_sparse import NativeSparseAttention
    from clusterformer.attention.neural_clustering import NeuralClusteringAttention
    from clusterformer.attention.oracle_top import OracleTopAttention
    from clusterformer.attention.partly_local import PartlyLocalAttention
    from clusterformer.attention.query_key_clustering import QueryKeyClusteringAttention
    from clusterformer.attention.reformer import ReformerAttention
    from clusterformer.attention.routing import RoutingAttention
    from clusterformer.attention.shared_full import SharedQKAttention

__all__ = [
    "PAPER_FORM",
    "Attended",
    "AttentionCore",
    "BlockTopKAttention",
    "Cache",
    "CentroidAttention",
    "ClusteredAttention",
    "FullAttention",
    "Grouping",
    "ImprovedClusteredAttention",
    "IndexerAttention",
    "KeyClusteringAttention",
    "LocalAttention",
    "Memory",
    "MultiHeadAttention",
    "MultipoleAttention",
    "NativeSparseAttention",
    "NeuralClusteringAttention",
    "OracleTopAttention",
    "PartlyLocalAttention",
    "QueryKeyClusteringAttention",
    "ReformerAttention",
    "RoutingAttention",
    "SharedQKAttention",
    "mechanisms",
]


def mechanisms() -> list[type[AttentionCore]]:
    """List every mechanism that has a file in this folder."""
    modules = [import_module(f"{__name__}.{found.name}") for found in iter_modules(__path__)]
    return [
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, AttentionCore)
        and value.__module__ == module.__name__
        and not isabstract(value)
    ]


_names = {cls.__name__: cls for cls in mechanisms()}
globals().update(_names)

if not TYPE_CHECKING:  # type checkers report a misspelt name by themselves

    def __getattr__(name: str) -> type[AttentionCore]:
        """Say which mechanisms there are; called only for a name that is not here."""
        raise AttributeError(f"no attention mechanism {name!r}; there are {', '.join(_names)}")
