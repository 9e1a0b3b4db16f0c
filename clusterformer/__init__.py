"""Transformers whose attention learns to cluster."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clusterformer.module import ClusterFormer

__version__ = "0.1.0"
__all__ = ["ClusterFormer", "__version__"]


def __getattr__(name: str) -> Any:
    # late, so that `import clusterformer.attention` needs torch alone
    if name == "ClusterFormer":
        from clusterformer.module import ClusterFormer

        return ClusterFormer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
