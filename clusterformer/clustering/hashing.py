"""Hash codes: the sides of random planes on which a vector lies, packed into one integer.

W hash bits   D width
"""

import torch
from torch import Tensor, nn

from clusterformer.seeded import draw_seeded, register_drawn

MAX_BITS = 63
"""Number of bits that fit an int64 beside its sign."""


class SignHash(nn.Module):
    """Signs of random projections (Charikar, 2002), which keep angles as Hamming distances.

    Args:
        width: D.
        bits: W, 1..63.
        seed: Seed of the planes, which are drawn once, and pass through 0 as in the paper; the code
            of its authors moves them off it by default, and draws them anew in each pass.

    Attributes:
        planes: (D, 64) normals of the planes, in columns; zeros beyond W.
    """

    planes: Tensor

    def __init__(self, width: int, bits: int = MAX_BITS, seed: int = 0) -> None:
        super().__init__()
        if not 1 <= bits <= MAX_BITS:
            raise ValueError(f"bits must be in 1..{MAX_BITS}, got {bits}")
        planes = draw_seeded(seed, lambda generator: torch.randn(width, bits, generator=generator))
        register_drawn(self, "planes", nn.functional.pad(planes, (0, 64 - bits)))

    def forward(self, x: Tensor) -> Tensor:
        """Hash vectors (..., D) to codes (...) int64."""
        return pack(x.detach().float() @ self.planes.float() > 0)


def pack(bits: Tensor) -> Tensor:
    """Pack bits (..., 64) bool into (...) int64, the first bit lowest."""
    if torch.onnx.is_in_onnx_export():  # ONNX has no view as other integers, and sums 53 bits
        shifts = torch.arange(32, device=bits.device)
        halves = torch.bitwise_left_shift(bits.unflatten(-1, (2, 32)).long(), shifts).sum(-1)
        return halves[..., 0] + halves[..., 1] * 2**32
    powers = (1 << torch.arange(8, device=bits.device)).float()
    values = bits.unflatten(-1, (8, 8)).float() @ powers
    return values.to(torch.uint8).view(torch.int64).squeeze(-1)


def unpack(codes: Tensor) -> Tensor:
    """Unpack codes (...) int64 to signs (..., 64) float32: +1 for a set bit, -1 for another."""
    if torch.onnx.is_in_onnx_export():
        shifts = torch.arange(64, device=codes.device)
        return (torch.bitwise_right_shift(codes[..., None], shifts) % 2).float() * 2 - 1
    octets = codes.contiguous()[..., None].view(torch.uint8).int()
    octet = torch.arange(256, device=codes.device)[:, None]
    signs = ((octet >> torch.arange(8, device=codes.device)) & 1).float() * 2 - 1
    return nn.functional.embedding(octets, signs).flatten(-2)
