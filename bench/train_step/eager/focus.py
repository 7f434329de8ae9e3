"""The mixers that pool over windows: leap and fastformer, with the presets leap_v101 and fastformer_latest."""

import argparse

import torch
from torch import Tensor, nn

from .layers import linear, lower, split_heads

EPS = 1e-5  # for sums of weights and for the standardisation


def standardise(x: Tensor) -> Tensor:
    """Returns (x - mean) / (std + eps) over the last dimension, with the unbiased std."""
    variance, mean = torch.var_mean(x, -1, keepdim=True)
    return (x - mean) / (variance.sqrt() + EPS)


class Pool(nn.Module):
    """The mean of u over a window with weights e^l. Sums over all earlier tokens are products with triangular matrices,
    which are faster than cumsum. Sums over a window of 2^n tokens take n additions, which are faster than differences
    of cumulative sums."""

    def __init__(self, args: argparse.Namespace, window: int):
        super().__init__()
        self.window, self.chunk = window, args.chunk
        self.register_buffer("causal", lower(args.chunk), persistent=False)
        self.register_buffer("before", lower(args.seq_len // args.chunk, -1), persistent=False)

    def sums(self, x: Tensor) -> Tensor:  # [B, T, X]
        if self.window == 0 or self.window >= x.shape[1]:
            own = self.causal @ x.unflatten(1, (-1, self.chunk))  # [B, N, C, X]
            return (own + (self.before @ own[:, :, -1]).unsqueeze(2)).flatten(1, 2)
        reach = 1
        while reach < self.window:
            x = torch.cat([x[:, :reach], x[:, reach:] + x[:, :-reach]], 1)
            reach *= 2
        return x

    def forward(self, log_weight: Tensor, u: Tensor) -> Tensor:  # [B, T, H], [B, T, H, P]
        weight = log_weight.exp()
        mass = self.sums(weight) + EPS
        return self.sums((weight.unsqueeze(-1) * u).flatten(2)).view_as(u) / mass.unsqueeze(-1)


class Leap(nn.Module):
    RESCALE = 10

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        self.heads, self.scale = args.heads, self.RESCALE * args.heads / args.dim
        self.projections = linear(args.dim, 4 * args.dim)
        window = 0 if layer % 4 == 0 else 4 << ((layer + 3) % 4)  # all, 4, 8, 16, all, 4, ...
        self.pool = Pool(args, window)

    def forward(self, x: Tensor) -> Tensor:
        parts = standardise(split_heads(self.projections(x), 4 * self.heads))
        q, f, k, v = parts.chunk(4, 2)  # [B, T, H, n] each
        log_weight = (f * k).sum(-1) * self.scale
        keys, values = self.pool(log_weight, torch.cat([k, v], -1)).chunk(2, -1)
        gate = torch.sigmoid((q * keys).sum(-1, keepdim=True) * self.scale)
        return (gate * values).flatten(2)


class Fastformer(nn.Module):
    RESCALE = 15

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        self.heads, self.scale = args.heads, self.RESCALE * args.heads / args.dim
        self.projections = linear(args.dim, 3 * args.dim)
        self.query_attn, self.key_attn = (
            nn.Parameter(0.02 * torch.randn(args.heads, args.dim // args.heads)) for _ in range(2)
        )
        ends = layer in (0, args.layers - 1)
        self.pool = Pool(args, 0 if ends else 4 << (layer - 1))  # all, 4, 8, 16, ..., all

    def pooled(self, x: Tensor, vector: Tensor) -> Tensor:
        u = standardise(split_heads(x, self.heads))
        return self.pool((u * standardise(vector)).sum(-1) * self.scale, u).flatten(2)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.projections(x).chunk(3, -1)
        return self.pooled(self.pooled(q, self.query_attn) * k, self.key_attn) * v
