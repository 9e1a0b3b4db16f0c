"""Pictures that show the same: turned, scaled and shifted a little.

N pictures   H height   W width
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class RandomAffine:
    """Turns, scales and shifts each picture of a batch by chance, each in its own way.

    Draws torch's random numbers. For `NeuralClustering(augment=RandomAffine(28, 28))`.

    Attributes:
        height: H.
        width: W.
        degrees: Turned by as much at most, to either side.
        scale: Larger or smaller by this share at most.
        shift: Along each side by this share of it at most.
    """

    height: int
    width: int
    degrees: float = 10.0
    scale: float = 0.1
    shift: float = 0.04

    def __call__(self, points: Tensor) -> Tensor:
        """Pictures (N, H * W) for pictures (N, H * W); what comes in from outside is 0.

        Raises:
            ValueError: if the points have another width.
        """
        if points.shape[1] != self.height * self.width:
            raise ValueError(
                f"pictures of {self.height} x {self.width} have {self.height * self.width} "
                f"columns, got {points.shape[1]}"
            )
        uniform = 2 * torch.rand(4, len(points), dtype=points.dtype, device=points.device) - 1
        angle = torch.deg2rad(self.degrees * uniform[0])
        size = 1 + self.scale * uniform[1]
        across, down = 2 * self.shift * uniform[2:]
        cos, sin = angle.cos() / size, angle.sin() / size
        aspect = self.width / self.height
        rows = [torch.stack([cos, -sin / aspect, across]), torch.stack([sin * aspect, cos, down])]
        images = points.view(-1, 1, self.height, self.width)
        grid = F.affine_grid(
            torch.stack(rows).permute(2, 0, 1), [*images.shape], align_corners=False
        )
        return F.grid_sample(images, grid, align_corners=False).flatten(1)
