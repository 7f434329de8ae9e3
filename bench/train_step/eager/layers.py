"""Layers and functions that several mixers share."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROTARY_BASE = 10000.0


def linear(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    layer = nn.Linear(inputs, outputs, bias=bias)
    nn.init.normal_(layer.weight, std=0.02)
    return layer


class RmsNorm(nn.Module):
    def __init__(self, dim: int, affine: bool = True):
        super().__init__()
        self.dim = dim
        self.weight = nn.Parameter(torch.ones(dim)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, (self.dim,), self.weight, eps=1e-6)


class Rotary(nn.Module):
    """Rotary position embedding of whole heads, which rotates the channels j and j + d/2 of a head together."""

    def __init__(self, head_dim: int, seq_len: int, frequency: Tensor | None = None):
        super().__init__()
        if frequency is None:  # one frequency per pair
            frequency = ROTARY_BASE ** (-torch.arange(0, head_dim, 2).float() / head_dim)
        angle = torch.outer(torch.arange(seq_len).float(), frequency)
        self.register_buffer(
            "cos", torch.cat([angle.cos()] * 2, -1)[None, :, None], persistent=False
        )
        self.register_buffer(
            "sin", torch.cat([angle.sin()] * 2, -1)[None, :, None], persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:  # [B, T, H, K]
        first, second = x.chunk(2, -1)
        return x * self.cos + torch.cat([-second, first], -1) * self.sin


def split_heads(x: Tensor, heads: int) -> Tensor:
    """Reshapes [..., H d] to [..., H, d]."""
    return x.unflatten(-1, (heads, -1))


def to_chunks(x: Tensor, chunk: int) -> Tensor:
    """Reshapes [B, T, H, X] to [B, H, N, C, X]."""
    batch, seq_len, heads, dim = x.shape
    return x.view(batch, seq_len // chunk, chunk, heads, dim).permute(0, 3, 1, 2, 4).contiguous()


def from_chunks(x: Tensor) -> Tensor:
    """Reshapes [B, H, N, C, X] to [B, T, H, X]."""
    batch, heads, num_chunks, chunk, dim = x.shape
    return x.permute(0, 2, 3, 1, 4).reshape(batch, num_chunks * chunk, heads, dim)


def lower(size: int, diagonal: int = 0) -> Tensor:
    """Returns a matrix [size, size] with ones on and below a diagonal. Its product with x has the cumulative sums of
    x."""
    return torch.ones(size, size).tril(diagonal)


class CausalConv(nn.Module):
    """A depthwise convolution over [B, C, T]. Its last tap is for the current token."""

    def __init__(self, channels: int, taps: int, bias: bool):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(channels, 1, taps) / taps**0.5)
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        channels, _, taps = self.weight.shape
        return F.conv1d(F.pad(x, (taps - 1, 0)), self.weight, self.bias, groups=channels)


class ChannelScores(nn.Module):
    """Computes q_i k_j for all pairs of a chunk, where each channel decays from token j to token i. For tokens of
    different sub-chunks, the exponent is split at the start of the later sub-chunk of Cs tokens, so both parts are <=
    0. For tokens of the same sub-chunk, the decays are computed for each channel and pair."""

    def __init__(self, chunk: int, sub: int):
        super().__init__()
        self.split = (chunk // sub, sub)
        position, start = torch.arange(chunk), torch.arange(0, chunk, sub)
        # earlier[s, j]: 0 if token j is before sub-chunk s, otherwise -inf. It is added to an exponent.
        earlier = torch.where(position[None, :] < start[:, None], 0.0, -math.inf)
        self.register_buffer("earlier", earlier[:, :, None], persistent=False)  # [S, C, 1]
        causal = torch.where(
            torch.arange(sub)[:, None] >= torch.arange(sub)[None, :], 0.0, -math.inf
        )
        self.register_buffer("causal", causal[:, :, None], persistent=False)  # [Cs, Cs, 1]

    def forward(self, q: Tensor, k: Tensor, log_decay: Tensor, total: Tensor) -> Tensor:
        """Returns scores [B, H, N, C, C]. All arguments are [B, H, N, C, K]; `total` is the cumulative sum of
        `log_decay` within a chunk."""
        sub_total = total.unflatten(3, self.split)  # [B, H, N, S, Cs, K]
        at_start = sub_total[..., :1, :] - log_decay.unflatten(3, self.split)[..., :1, :]
        q_sub, k_sub = q.unflatten(3, self.split), k.unflatten(3, self.split)
        q_from_start = q_sub * torch.exp(sub_total - at_start)
        k_to_start = k[:, :, :, None] * torch.exp(at_start - total[:, :, :, None] + self.earlier)
        across = q_from_start @ k_to_start.transpose(-1, -2)  # [B, H, N, S, Cs, C]
        pair = torch.exp(sub_total[..., :, None, :] - sub_total[..., None, :, :] + self.causal)
        within = (q_sub[..., :, None, :] * k_sub[..., None, :, :] * pair).sum(
            -1
        )  # [B, H, N, S, Cs, Cs]
        diagonal = torch.diag_embed(within.permute(0, 1, 2, 4, 5, 3))  # [B, H, N, Cs, Cs, S, S]
        diagonal = diagonal.permute(0, 1, 2, 5, 3, 6, 4).reshape(*across.shape)
        return (across + diagonal).flatten(3, 4)
