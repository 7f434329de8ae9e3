"""The mixers that compute a weight for each pair of tokens: softmax, gau, based and rebased."""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import Rotary, linear, lower, split_heads


class Softmax(nn.Module):
    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        dim, self.heads = args.dim, args.heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (linear(dim, dim) for _ in range(4))
        self.rotary = Rotary(dim // args.heads, args.seq_len)

    def forward(self, x: Tensor) -> Tensor:
        q = self.rotary(split_heads(self.q_proj(x), self.heads)).transpose(1, 2)
        k = self.rotary(split_heads(self.k_proj(x), self.heads)).transpose(1, 2)
        v = split_heads(self.v_proj(x), self.heads).transpose(1, 2)
        o = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(o.transpose(1, 2).flatten(-2))


class Gau(nn.Module):
    """One head with wide values. Each block of 128 queries is multiplied by its keys and all earlier ones. This takes
    0.75 of the time of LibTorch's fused attention, which uses another implementation for values wider than keys, and
    0.8 of the time of one product of all pairs (B 8, T 512, 512 channels of values, one thread)."""

    BLOCK, KEYS = 128, 128

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        dim, width = args.dim, 2 * args.dim
        self.block = min(self.BLOCK, args.seq_len)
        self.u_proj, self.v_proj = linear(dim, width), linear(dim, width)
        self.z_proj, self.o_proj = linear(dim, self.KEYS), linear(width, dim)
        self.q_gain, self.k_gain = (nn.Parameter(torch.ones(self.KEYS)) for _ in range(2))
        self.rotary = Rotary(self.KEYS, args.seq_len)
        hidden = torch.full((self.block, self.block), -torch.inf).triu(1)
        self.register_buffer("hidden", hidden, persistent=False)  # for the keys of the block itself

    def forward(self, x: Tensor) -> Tensor:
        u, v, z = (F.silu(layer(x)) for layer in (self.u_proj, self.v_proj, self.z_proj))
        q, k = (self.rotary((z * gain)[:, :, None])[:, :, 0] for gain in (self.q_gain, self.k_gain))
        outs = []
        for start in range(0, x.shape[1], self.block):
            end = start + self.block
            scores = q[:, start:end] @ k[:, :end].transpose(1, 2) * self.KEYS**-0.5
            own = scores[..., start:] + self.hidden
            outs.append(torch.cat([scores[..., :start], own], -1).softmax(-1) @ v[:, :end])
        return self.o_proj(u * torch.cat(outs, 1))


class Polynomial(nn.Module):
    """The part that based and rebased share: weights of degree 2 in q.k, divided by their sum. Each block of 64 queries
    is multiplied by its keys and all earlier ones. At T 512 this is faster than chunks with packed features of q and k,
    and faster than one product of all pairs."""

    BLOCK, FEATURES, EPS = 64, 16, 1e-12

    def __init__(self, args: argparse.Namespace):
        super().__init__()
        self.heads, self.block = args.heads, min(self.BLOCK, args.seq_len)
        keys, values = args.heads * self.FEATURES, args.dim // args.heads * args.heads
        self.q_proj, self.k_proj = linear(args.dim, keys), linear(args.dim, keys)
        self.v_proj, self.o_proj = linear(args.dim, values), linear(values, args.dim)
        self.register_buffer("causal", lower(self.block), persistent=False)  # for the keys of the block itself

    def heads_of(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q, k and v as [B, H, T, *]. v has an additional channel of ones, whose sum is the divisor."""
        q, k, v = (split_heads(y, self.heads).transpose(1, 2) for y in (q, k, v))
        v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
        return (q * self.FEATURES**-0.5).contiguous(), k.contiguous(), v

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = self.heads_of(q, k, v)
        sums = []
        for start in range(0, q.shape[2], self.block):
            end = start + self.block
            weights = self.similarity(q[:, :, start:end] @ k[:, :, :end].transpose(-1, -2))
            own = weights[..., start:] * self.causal
            sums.append(torch.cat([weights[..., :start], own], -1) @ v[:, :, :end])
        y = torch.cat(sums, 2)
        y = y[..., :-1] / (y[..., -1:] + self.EPS)
        return self.o_proj(y.transpose(1, 2).flatten(2))


class Based(Polynomial):
    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__(args)

    def similarity(self, s: Tensor) -> Tensor:
        return (s + 1).square() + 1  # 2 (1 + s + s^2 / 2), in fewer passes; the division cancels the factor 2

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(self.q_proj(x), self.k_proj(x), self.v_proj(x))


class LayerNorm(nn.Module):
    def __init__(self, dim: int):
        super().__init__()
        self.gamma, self.beta = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.gamma.shape, self.gamma, self.beta, eps=1e-5)


class Rebased(Polynomial):
    """The norm of q and k covers the channels of all heads together."""

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__(args)
        self.q_feature_map, self.k_feature_map = (
            LayerNorm(args.heads * self.FEATURES) for _ in range(2)
        )

    def similarity(self, s: Tensor) -> Tensor:
        return s.square()

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.q_feature_map(self.q_proj(x)), self.k_feature_map(self.k_proj(x))
        return self.attend(q, k, self.v_proj(x))
