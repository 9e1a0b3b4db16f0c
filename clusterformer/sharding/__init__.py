"""One long sequence over several processes: each holds a share of the tokens."""

from clusterformer.sharding.peers import Peers
from clusterformer.sharding.shard import shard, sum_gradients

__all__ = ["Peers", "shard", "sum_gradients"]
