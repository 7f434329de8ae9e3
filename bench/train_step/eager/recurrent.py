"""The recurrences of rwkv4, mamba and mamba2."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import CausalConv, RmsNorm, linear, split_heads


class Rwkv4(nn.Module):
    """The decay w of a channel is the same for all tokens, so sums are products with matrices of e^((i - j) w): [C, C]
    within a chunk, and [N, N] between chunks. The largest key of a row and channel is subtracted from all of them. Keys
    that are smaller by 80 or more are lost here, but not in halflife."""

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        dim, self.chunk = args.dim, args.chunk
        self.time_decay, self.time_first, self.time_mix_k, self.time_mix_v, self.time_mix_r = (
            nn.Parameter(torch.zeros(dim)) for _ in range(5)  # loaded by --start
        )
        self.key, self.value, self.receptance, self.output = (linear(dim, dim) for _ in range(4))
        self.register_buffer("within", self.distances(args.chunk), persistent=False)
        num_chunks = args.seq_len // args.chunk
        # from the end of chunk m to the start of chunk n
        between = self.distances(num_chunks) * args.chunk
        self.register_buffer("between", between, persistent=False)
        place = torch.arange(args.chunk).float()
        self.register_buffer("place", place, persistent=False)  # [C]

    @staticmethod
    def distances(size: int) -> Tensor:
        """Returns the number of tokens between i and j < i, which is i - j - 1, as a matrix [size, size]."""
        place = torch.arange(size).float()
        return (place[:, None] - place - 1).clamp(min=0)

    def sums(self, x: Tensor, log_decay: Tensor) -> Tensor:
        """Returns the decayed sum over the tokens before each token, [D, T, X]. log_decay is [D, 1]."""
        within = torch.exp(log_decay[..., None] * self.within).tril(-1)  # [D, C, C]
        between = torch.exp(log_decay[..., None] * self.between).tril(-1)  # [D, N, N]
        to_end = torch.exp(log_decay * (self.chunk - 1 - self.place))  # [D, C]
        from_start = torch.exp(log_decay * self.place)  # [D, C]
        chunks = x.unflatten(1, (-1, self.chunk))  # [D, N, C, X]
        own = (to_end[:, None, None] @ chunks).squeeze(2)  # [D, N, X]
        before = (between @ own).unsqueeze(2)  # [D, N, 1, X]
        return torch.addcmul(
            within[:, None] @ chunks, from_start[:, None, :, None], before
        ).flatten(1, 2)

    def average(self, k: Tensor, v: Tensor) -> Tensor:  # [B, T, D]
        own = k + self.time_first
        top = torch.maximum(k, own).detach().amax(1, keepdim=True)
        weight = torch.exp(k - top)
        batch = k.shape[0]
        both = torch.cat([weight, weight * v]).permute(2, 1, 0).contiguous()  # [D, T, 2 B]
        sums = self.sums(both, -torch.exp(self.time_decay)[:, None]).permute(2, 1, 0)
        now = torch.exp(own - top)
        return torch.addcmul(sums[batch:], now, v) / (sums[:batch] + now)

    def forward(self, x: Tensor) -> Tensor:
        earlier = F.pad(x, (0, 0, 1, -1))
        k, v, r = (
            matrix(torch.lerp(earlier, x, mix))
            for matrix, mix in (
                (self.key, self.time_mix_k),
                (self.value, self.time_mix_v),
                (self.receptance, self.time_mix_r),
            )
        )
        return self.output(torch.sigmoid(r) * self.average(k, v))


class Mamba(nn.Module):
    """Runs token by token, because the states of one token [B, I, N] stay in the cache. A scan in chunks reads and
    writes the states of all tokens about a dozen times, from and to memory."""

    STATES, TAPS, EXPAND = 16, 4, 2

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        inner, self.rank = self.EXPAND * args.dim, math.ceil(args.dim / 16)
        self.in_proj = linear(args.dim, 2 * inner)
        self.conv1d = CausalConv(inner, self.TAPS, bias=True)
        self.x_proj = linear(inner, self.rank + 2 * self.STATES)
        self.dt_proj = linear(self.rank, inner, bias=True)
        self.A_log = nn.Parameter(torch.log(torch.arange(1.0, self.STATES + 1)).repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = linear(inner, args.dim)

    def scan(self, x: Tensor, step: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Returns [B, T, I]. x and step are [B, T, I]; b and c are [B, T, N]."""
        a = -torch.exp(self.A_log)
        added = step * x
        state = torch.zeros(x.shape[0], *a.shape)
        outs = []
        tokens = zip(*(y.unbind(1) for y in (step, added, b, c)))
        for step_t, added_t, b_t, c_t in tokens:
            decay = torch.exp(step_t[..., None] * a)
            state = torch.addcmul(added_t[..., None] * b_t[:, None], decay, state)
            outs.append(torch.bmm(state, c_t[..., None]))
        return torch.stack(outs, 1).squeeze(-1)

    def forward(self, u: Tensor) -> Tensor:
        x, gate = self.in_proj(u).chunk(2, -1)
        x = F.silu(self.conv1d(x.transpose(1, 2))).transpose(1, 2).contiguous()
        step, b, c = self.x_proj(x).split([self.rank, self.STATES, self.STATES], -1)
        step = F.softplus(self.dt_proj(step))
        y = torch.addcmul(self.scan(x, step, b, c), self.D, x)
        return self.out_proj(y * F.silu(gate))


class Mamba2(nn.Module):
    """One decay per head and token, computed as in SSD: within a chunk, a product C B^T that all heads share,
    multiplied by the decays of each head; between chunks, a product of the chunks' states with their decays [N, N]."""

    STATES, TAPS, EXPAND = 128, 4, 2

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        self.inner, self.heads, self.chunk = self.EXPAND * args.dim, args.heads, args.chunk
        convolved = self.inner + 2 * self.STATES
        self.in_proj = linear(args.dim, self.inner + convolved + self.heads)
        self.conv1d = CausalConv(convolved, self.TAPS, bias=True)
        self.A_log, self.D, self.dt_bias = (nn.Parameter(torch.zeros(self.heads)) for _ in range(3))
        self.norm = RmsNorm(self.inner)
        self.out_proj = linear(self.inner, args.dim)
        place, number = torch.arange(self.chunk), torch.arange(args.seq_len // self.chunk)
        causal = torch.where(place[:, None] >= place, 0.0, -math.inf)
        self.register_buffer("causal", causal, persistent=False)  # [C, C]: 0 or -inf
        before = torch.where(number[:, None] > number, 0.0, -math.inf)
        self.register_buffer("before", before, persistent=False)  # [N, N]

    def scan(self, x: Tensor, step: Tensor, b: Tensor, c: Tensor) -> Tensor:
        """Returns [B, T, H, P]. x is [B, T, H, P], step is [B, T, H], and b and c are [B, T, S]."""
        batch, seq_len, heads, width = x.shape
        split = (seq_len // self.chunk, self.chunk)
        b, c = b.unflatten(1, split).unsqueeze(1), c.unflatten(1, split).unsqueeze(1)
        values = (x * step[..., None]).unflatten(1, split).permute(0, 3, 1, 2, 4).contiguous()
        log_decay = (-self.A_log.exp() * step).permute(0, 2, 1).unflatten(2, split)
        total = log_decay.cumsum(3)  # [B, H, N, C]
        last = total[..., -1]  # [B, H, N]
        within = torch.exp(total[..., :, None] - total[..., None, :] + self.causal)
        y = (c @ b.transpose(-1, -2) * within) @ values  # [B, H, N, C, P]
        to_end = torch.exp(last[..., None] - total)[..., None]
        added = b.transpose(-1, -2) @ (values * to_end)  # [B, H, N, S, P]
        cumulated = last.cumsum(2)
        carry = torch.exp((cumulated - last)[..., :, None] - cumulated[..., None, :] + self.before)
        state = (carry @ added.flatten(-2)).view_as(added)
        y = torch.addcmul(y, c @ state, total.exp()[..., None])
        return y.permute(0, 2, 3, 1, 4).reshape(batch, seq_len, heads, width)

    def forward(self, u: Tensor) -> Tensor:
        z, x, step = self.in_proj(u).split([self.inner, self.inner + 2 * self.STATES, self.heads], -1)
        x = F.silu(self.conv1d(x.transpose(1, 2))).transpose(1, 2)
        x, b, c = x.split([self.inner, self.STATES, self.STATES], -1)
        x = split_heads(x, self.heads)
        y = self.scan(x, F.softplus(step + self.dt_bias), b, c)
        y = torch.addcmul(y, self.D[:, None], x).flatten(-2)
        return self.out_proj(self.norm(y * F.silu(z)))
