"""The mixers with a decayed state: retention, gla, linear_attention and d2d."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import (
    ROTARY_BASE,
    ChannelScores,
    RmsNorm,
    Rotary,
    from_chunks,
    linear,
    lower,
    split_heads,
    to_chunks,
)

GATE_RANK = 16
GATE_NORMALISER = 16


class Gated(nn.Module):
    """The part that retention and gla share: the projections of q, k and v, and for the output a norm of each head, the
    gate silu(g) and a projection."""

    def __init__(self, dim: int, key_dim: int, value_dim: int, heads: int):
        super().__init__()
        self.heads, self.scale = heads, (key_dim // heads) ** -0.5
        self.q_proj, self.k_proj = linear(dim, key_dim), linear(dim, key_dim)
        self.v_proj, self.g_proj = linear(dim, value_dim), linear(dim, value_dim)
        self.g_norm_swish_gate = RmsNorm(value_dim // heads)
        self.o_proj = linear(value_dim, dim)

    def finish(self, o: Tensor, x: Tensor) -> Tensor:  # [B, T, H, V], [B, T, D]
        return self.o_proj(self.g_norm_swish_gate(o).flatten(-2) * F.silu(self.g_proj(x)))


class Retention(Gated):
    """One constant decay per head, gamma_h = 1 - 2^(-5-h), so all decay masks are constants."""

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__(args.dim, args.dim, int(args.dim * args.expand_v), args.heads)
        self.chunk = args.chunk
        self.rotary = Rotary(args.dim // args.heads, args.seq_len)
        log_decay = torch.log1p(-(2.0 ** (-5 - torch.arange(args.heads))))
        self.make_masks(log_decay, args.chunk, args.seq_len // args.chunk)

    def make_masks(self, log_decay: Tensor, chunk: int, num_chunks: int) -> None:
        position = torch.arange(chunk)
        distance = position[:, None] - position[None, :]
        intra = torch.exp(log_decay[:, None, None] * distance.clamp(min=0)) * (distance >= 0)
        number = torch.arange(num_chunks)
        between = (number[:, None] - number[None, :] - 1) * chunk
        inter = torch.exp(log_decay[:, None, None] * between.clamp(min=0)) * (between >= 0)
        to_end = torch.exp(log_decay[:, None] * (chunk - 1 - position))
        from_start = torch.exp(log_decay[:, None] * (position + 1))
        self.register_buffer("intra", intra[:, None], persistent=False)  # [H, 1, C, C]
        self.register_buffer("inter", inter, persistent=False)  # [H, N, N]
        self.register_buffer("to_end", to_end[:, None, :, None], persistent=False)  # [H, 1, C, 1]
        self.register_buffer("from_start", from_start[:, None, :, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.attend(split_heads(self.q_proj(x), self.heads), x)

    def attend(self, q: Tensor, x: Tensor) -> Tensor:  # [B, T, H, K], [B, T, D]
        q = to_chunks(self.rotary(q), self.chunk) * self.scale
        k = to_chunks(self.rotary(split_heads(self.k_proj(x), self.heads)), self.chunk)
        v = to_chunks(split_heads(self.v_proj(x), self.heads), self.chunk)
        added = (k * self.to_end).transpose(-1, -2) @ v  # [B, H, N, K, V]
        state = (self.inter @ added.flatten(-2)).view_as(added)
        o = (q @ k.transpose(-1, -2) * self.intra) @ v + (q * self.from_start) @ state
        return self.finish(from_chunks(o), x)


class RetNet(Retention):
    """Retention in torchscale's form: with torchscale's angles, a norm without weights, and rows divided by the square
    root of the sum of their decays. This divisor is a constant factor of each query."""

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__(args, layer)
        half = args.dim // args.heads // 2
        frequency = ROTARY_BASE ** (-torch.arange(half).double() / (half - 1))
        self.rotary = Rotary(2 * half, args.seq_len, frequency.float())
        self.g_norm_swish_gate = RmsNorm(int(args.dim * args.expand_v) // args.heads, affine=False)
        gamma = 1 - 2.0 ** (-5 - torch.arange(args.heads).double())
        count = torch.arange(args.seq_len)[:, None] + 1.0
        sums = (1 - gamma**count) / (1 - gamma)
        self.register_buffer("rows", sums.rsqrt().float()[:, :, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        scaled = split_heads(self.q_proj(x), self.heads) * self.rows
        return self.attend(scaled, x)


class Gla(Gated):
    """One decay per token and channel."""

    def __init__(self, args: argparse.Namespace, layer: int):
        key_dim = int(args.dim * args.expand_k)
        super().__init__(args.dim, key_dim, args.dim, args.heads)
        self.chunk = args.chunk
        self.scores = ChannelScores(args.chunk, args.sub_chunk)
        self.gk_proj = nn.Sequential(
            linear(args.dim, GATE_RANK), linear(GATE_RANK, key_dim, bias=True)
        )
        number = torch.arange(args.seq_len // self.chunk)
        before = torch.where(number[:, None] > number[None, :], 0.0, -math.inf)
        self.register_buffer("before", before[:, :, None], persistent=False)  # [N, N, 1]

    def forward(self, x: Tensor) -> Tensor:
        heads, chunk = self.heads, self.chunk
        q = to_chunks(split_heads(self.q_proj(x), heads), chunk) * self.scale
        k = to_chunks(split_heads(self.k_proj(x), heads), chunk)
        v = to_chunks(split_heads(self.v_proj(x), heads), chunk)
        log_decay = to_chunks(
            split_heads(F.logsigmoid(self.gk_proj(x)) / GATE_NORMALISER, heads), chunk
        )
        total = log_decay.cumsum(3)  # [B, H, N, C, K]
        chunk_total = total[:, :, :, -1:]
        added = (k * torch.exp(chunk_total - total)).transpose(-1, -2) @ v  # [B, H, N, K, V]
        # state[n] = sum over m < n of exp(log decay of chunks m+1 .. n-1) added[m], for each channel
        cumulated = chunk_total.squeeze(3).cumsum(2)  # [B, H, N, K]
        start = cumulated - chunk_total.squeeze(3)
        carry = torch.exp(
            start[:, :, :, None] - cumulated[:, :, None] + self.before
        )  # [B, H, N, N, K]
        state = (carry.permute(0, 1, 4, 2, 3) @ added.transpose(2, 3)).transpose(
            2, 3
        )  # [B, H, N, K, V]
        o = self.scores(q, k, log_decay, total) @ v + (q * torch.exp(total)) @ state
        return self.finish(from_chunks(o), x)


class Normalised(nn.Module):
    """The part that linear_attention and d2d share: weights from the features elu(x) + 1, divided by their sum."""

    def __init__(self, args: argparse.Namespace, bias: bool):
        super().__init__()
        dim, self.heads, self.chunk = args.dim, args.heads, args.chunk
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            linear(dim, dim, bias) for _ in range(4)
        )
        self.register_buffer("causal", lower(args.chunk), persistent=False)  # [C, C]

    def features(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns q, k and v of all chunks, [B, H, N, C, *]."""
        q, k, v = (split_heads(y(x), self.heads) for y in (self.q_proj, self.k_proj, self.v_proj))
        return tuple(to_chunks(y, self.chunk) for y in (F.elu(q) + 1, F.elu(k) + 1, v))

    def divide(self, numerator: Tensor, denominator: Tensor) -> Tensor:
        return self.o_proj(from_chunks(numerator / denominator).flatten(2))


class LinearAttention(Normalised):
    EPS = 1e-10

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__(args, bias=False)
        self.scale = (args.dim // args.heads) ** -0.5
        self.register_buffer("before", lower(args.seq_len // args.chunk, -1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.features(x)
        q = q * self.scale
        added = k.transpose(-1, -2) @ v  # [B, H, N, K, V]
        state = (self.before @ added.flatten(-2)).view_as(added)
        keys = (self.before @ k.sum(3)).unsqueeze(-1)  # [B, H, N, K, 1]
        scores = q @ k.transpose(-1, -2) * self.causal
        return self.divide(
            torch.baddbmm((q @ state).flatten(0, 2), scores.flatten(0, 2), v.flatten(0, 2)).view_as(
                v
            ),
            scores.sum(-1, keepdim=True) + q @ keys + self.EPS,
        )


class D2d(Normalised):
    """One decay per channel, exp(ld) with ld = -2^(-H/h) - Ps, where Ps is trained. The exponent for tokens i and j of
    chunks n and m is split at the centres c of their chunks: ld (i - c) + ld (c - j) + ld C (n - m). The largest
    exponent within a chunk is then C/2 times the fastest decay: 8 with C = 32."""

    EPS = 1e-30

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__(args, bias=True)
        self.Ps = nn.Parameter(torch.zeros(1, args.dim))
        head = torch.arange(1, args.heads + 1).double()
        base = -(2.0 ** (-args.heads / head)).float()
        self.register_buffer("base", base[:, None], persistent=False)  # [H, 1]
        place = torch.arange(args.chunk) - (args.chunk - 1) / 2
        self.register_buffer("place", place[:, None], persistent=False)  # [C, 1]
        number = torch.arange(args.seq_len // args.chunk)
        between = ((number[:, None] - number) * args.chunk).clamp(min=0).float()
        self.register_buffer("between", between, persistent=False)  # [N, N]

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.features(x)
        log_decay = self.base - self.Ps.view(self.heads, -1)  # [H, K]
        within = torch.exp(log_decay[:, None, None] * self.place)  # [H, 1, C, K]
        carry = torch.exp(log_decay[:, :, None, None] * self.between).tril(-1)  # [H, K, N, N]
        q, k = q * within, k / within
        added = k.transpose(-1, -2) @ v  # [B, H, N, K, V]
        state = (carry @ added.transpose(2, 3)).transpose(2, 3)
        keys = (carry @ k.sum(3).transpose(2, 3).unsqueeze(-1)).transpose(2, 3)
        scores = q @ k.transpose(-1, -2) * self.causal
        return self.divide(
            scores @ v + q @ state, scores.sum(-1, keepdim=True) + q @ keys + self.EPS
        )
