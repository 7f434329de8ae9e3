"""The mixers of the delta rule: delta_net, gated_delta_net and kda.

S_t = decay_t S_{t-1} + k_t^T beta_t (v_t - k_t decay_t S_{t-1}), o_t = q_t S_t / sqrt(K), with |q_t| = |k_t| = 1.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import (
    CausalConv,
    ChannelScores,
    RmsNorm,
    from_chunks,
    linear,
    lower,
    split_heads,
    to_chunks,
)

TAPS = 4


class Delta(nn.Module):
    """The part that the three mixers share: projections with short convolutions, the algorithm in chunks, and the
    output norm. The values that a chunk writes solve a triangular system, whose right-hand sides are all values and
    keys of the chunk. The state is passed from chunk to chunk."""

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        dim, self.heads, self.chunk = args.dim, args.heads, args.chunk
        self.head_dim = dim // args.heads
        self.q_proj, self.k_proj, self.v_proj = linear(dim, dim), linear(dim, dim), linear(dim, dim)
        self.q_conv1d, self.k_conv1d, self.v_conv1d = (
            CausalConv(dim, TAPS, bias=False) for _ in range(3)
        )
        self.b_proj = linear(dim, args.heads)
        self.o_norm = RmsNorm(self.head_dim)
        self.o_proj = linear(dim, dim)
        self.register_buffer("causal", lower(self.chunk), persistent=False)  # [C, C]
        self.register_buffer("before", lower(self.chunk, -1), persistent=False)  # [C, C]

    def project(self, x: Tensor) -> list[Tensor]:
        """Returns q, k and v of all chunks, [B, H, N, C, K]."""
        results = []
        for matrix, conv in (
            (self.q_proj, self.q_conv1d),
            (self.k_proj, self.k_conv1d),
            (self.v_proj, self.v_conv1d),
        ):
            y = F.silu(conv(matrix(x).transpose(1, 2))).transpose(1, 2)
            results.append(to_chunks(split_heads(y, self.heads), self.chunk))
        q, k, v = results
        return [F.normalize(q, dim=-1) * self.head_dim**-0.5, F.normalize(k, dim=-1), v]

    def gate_to_chunks(self, x: Tensor) -> Tensor:  # [B, T, H] -> [B, H, N, C, 1]
        return to_chunks(x.unsqueeze(-1), self.chunk)

    def beta(self, x: Tensor) -> Tensor:  # [B, H, N, C, 1]
        return self.gate_to_chunks(torch.sigmoid(self.b_proj(x)))

    def solve(self, keys: Tensor, beta: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Returns (I + beta keys)^-1 beta [k, v]. keys [B, H, N, C, C] is the strict lower triangle of products of
        keys."""
        right = torch.cat([k, v], -1) * beta
        written = torch.linalg.solve_triangular(
            keys * beta, right, upper=False, unitriangular=True
        )
        return written.split([k.shape[-1], v.shape[-1]], -1)

    def scan(
        self,
        scores: Tensor,  # [B, H, N, C, C]: q_i k_j with the decay from j to i
        q: Tensor,  # [B, H, N, C, K], decayed from the start of the chunk
        k: Tensor,  # [B, H, N, C, K], decayed to its end
        w: Tensor,  # [B, H, N, C, K]
        u: Tensor,  # [B, H, N, C, V]
        decay: Tensor | None,  # [B, H, N, K or 1, 1], of a whole chunk
    ) -> Tensor:
        batch, heads, _, _, key_dim = q.shape
        state = q.new_zeros(batch, heads, key_dim, u.shape[-1])
        factors = [None] * q.shape[2] if decay is None else decay.unbind(2)
        states, values = [], []
        for k_n, w_n, u_n, factor in zip(
            k.transpose(-1, -2).unbind(2), w.unbind(2), u.unbind(2), factors
        ):
            value = u_n - w_n @ state
            states.append(state)
            values.append(value)
            if factor is not None:
                state = state * factor
            state = state + k_n @ value
        return scores @ torch.stack(values, 2) + q @ torch.stack(states, 2)


class DeltaNet(Delta):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        w, u = self.solve(k @ k.transpose(-1, -2) * self.before, self.beta(x), k, v)
        o = self.scan(q @ k.transpose(-1, -2) * self.causal, q, k, w, u, None)
        return self.o_proj(self.o_norm(from_chunks(o)).flatten(-2))


class GatedDeltaNet(Delta):
    """One decay per token and head."""

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__(args, layer)
        self.g_proj = linear(args.dim, args.dim)
        self.a_proj = linear(args.dim, args.heads)
        self.A_log, self.dt_bias = (nn.Parameter(torch.zeros(args.heads)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        log_decay = -self.A_log.exp() * F.softplus(self.a_proj(x) + self.dt_bias)
        total = self.gate_to_chunks(log_decay).cumsum(3)  # [B, H, N, C, 1]
        last = total[:, :, :, -1:]
        # The exponents above the diagonal would overflow, so they are masked before exp, too.
        between = torch.exp((total - total.transpose(-1, -2)) * self.causal) * self.causal
        k_start = k * total.exp()
        keys = k @ k.transpose(-1, -2) * between * self.before
        w, u = self.solve(keys, self.beta(x), k_start, v)
        o = self.scan(
            q @ k.transpose(-1, -2) * between,
            q * total.exp(),
            k * (last - total).exp(),
            w,
            u,
            last.exp(),
        )
        gate = split_heads(F.silu(self.g_proj(x)), self.heads)
        return self.o_proj((self.o_norm(from_chunks(o)) * gate).flatten(-2))


class Kda(Delta):
    """One decay per token and key channel, and an output gate of low rank."""

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__(args, layer)
        dim, rank = args.dim, self.head_dim
        self.f_proj = nn.Sequential(linear(dim, rank), linear(rank, dim))
        self.g_proj = nn.Sequential(linear(dim, rank), linear(rank, dim, bias=True))
        self.A_log = nn.Parameter(torch.zeros(args.heads))
        self.dt_bias = nn.Parameter(torch.zeros(dim))
        self.scores = ChannelScores(args.chunk, args.sub_chunk)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x)
        step = split_heads(F.softplus(self.f_proj(x) + self.dt_bias), self.heads)
        log_decay = to_chunks(-self.A_log.exp()[:, None] * step, self.chunk)
        total = log_decay.cumsum(3)  # [B, H, N, C, K]
        last = total[:, :, :, -1:]
        keys = self.scores(k, k, log_decay, total) * self.before
        w, u = self.solve(keys, self.beta(x), k * total.exp(), v)
        o = self.scan(
            self.scores(q, k, log_decay, total),
            q * total.exp(),
            k * (last - total).exp(),
            w,
            u,
            last.exp().transpose(-1, -2),
        )
        gate = split_heads(torch.sigmoid(self.g_proj(x)), self.heads)
        return self.o_proj((self.o_norm(from_chunks(o)) * gate).flatten(-2))
