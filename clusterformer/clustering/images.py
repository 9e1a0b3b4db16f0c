"""Augmentation of images by small rotations, scalings and shifts.

P points (images as rows of height * width values)
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class RandomAffine:
    """Random rotation, scaling and shift of each image of a batch.

    Use: `NeuralClustering(augment=RandomAffine(28, 28))`.

    Attributes:
        height: Height of an image, in pixels.
        width: Width of an image, in pixels.
        degrees: Maximum rotation to either side.
        scale: Maximum change of size, as a share.
        shift: Maximum shift along each side, as a share of it.
    """

    height: int
    width: int
    degrees: float = 10.0
    scale: float = 0.1
    shift: float = 0.04

    def __call__(self, points: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Transform images (P, height * width); pixels from outside are 0.

        Args:
            points: Images.
            generator: Generator on the CPU; None for torch's global one.

        Raises:
            ValueError: if the points have another number of columns.
        """
        if points.shape[1] != self.height * self.width:
            raise ValueError(
                f"images of {self.height} x {self.width} have {self.height * self.width} columns, "
                f"got {points.shape[1]}"
            )
        drawn = torch.rand(4, len(points), dtype=points.dtype, generator=generator)
        uniform = 2 * drawn.to(points.device) - 1
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
