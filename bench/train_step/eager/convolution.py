"""The convolutional mixers: base_conv, gated_conv and hyena. They convolve [B, D, T], as PyTorch does."""

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .layers import CausalConv, linear


class BaseConv(nn.Module):
    """Computes conv(u) * (W u + b) + u with 3 taps."""

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        self.projection = linear(args.dim, args.dim, bias=True)
        self.conv = nn.ModuleDict({"conv": CausalConv(args.dim, 3, bias=True)})

    def forward(self, u: Tensor) -> Tensor:
        convolved = self.conv["conv"](u.transpose(1, 2)).transpose(1, 2)
        return torch.addcmul(u, convolved, self.projection(u))


class GatedConv(nn.Module):
    """Computes W_o (silu(conv(u)) * g) + b_o with (u, g) = W_in x + b_in, each twice as wide as x."""

    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        self.in_proj = linear(args.dim, 4 * args.dim, bias=True)
        self.conv = CausalConv(2 * args.dim, 3, bias=False)
        self.o_proj = linear(2 * args.dim, args.dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        u, gate = self.in_proj(x).chunk(2, -1)
        return self.o_proj(F.silu(self.conv(u.transpose(1, 2))).transpose(1, 2) * gate)


class Sine(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.freq = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(self.freq * x)


class SineFilter(nn.Module):
    """A filter as long as the row, which a network computes from positions. It is multiplied by a window exp(-rate t)
    with one rate per channel."""

    LENGTH, WIDTH = 1024, 64
    WINDOW_END, SLOWEST, FASTEST = 0.01, 1.5, 0.3

    def __init__(self, dim: int, seq_len: int):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(dim))
        self.pos_emb = nn.ParameterDict({"z": torch.zeros(1, self.LENGTH, 3)})  # loaded by --start
        width = self.WIDTH
        layers = [linear(3, width, True), linear(width, width, True), linear(width, width, True)]
        self.implicit_filter = nn.ModuleDict(
            {
                **{str(2 * i): layer for i, layer in enumerate(layers)},
                "1": Sine(width),  # used after each of the three layers
                "6": linear(width, dim),
            }
        )
        slow, fast = (math.log(self.WINDOW_END) / end for end in (self.SLOWEST, self.FASTEST))
        times = torch.arange(seq_len) / (self.LENGTH - 1)
        window = torch.exp(torch.outer(times, torch.linspace(slow, fast, dim)))
        self.register_buffer("window", window, persistent=False)  # [T, D]

    def forward(self) -> Tensor:  # [D, T]
        network = self.implicit_filter
        h = self.pos_emb["z"][0, : self.window.shape[0]]
        for name in ("0", "2", "4"):
            h = network["1"](network[name](h))
        return (network["6"](h) * self.window).t().contiguous()


class Hyena(nn.Module):
    def __init__(self, args: argparse.Namespace, layer: int):
        super().__init__()
        self.in_proj = linear(args.dim, 3 * args.dim, bias=True)
        self.short_filter = CausalConv(3 * args.dim, 3, bias=True)
        self.filter_fn = SineFilter(args.dim, args.seq_len)
        self.o_proj = linear(args.dim, args.dim, bias=True)

    def forward(self, x: Tensor) -> Tensor:
        convolved = self.short_filter(self.in_proj(x).transpose(1, 2))
        first, second, v = convolved.chunk(3, 1)  # [B, D, T]
        u, size = first * v, 2 * x.shape[1]
        spectrum = torch.fft.rfft(u, n=size) * torch.fft.rfft(self.filter_fn(), n=size)
        sums = torch.fft.irfft(spectrum, n=size)[..., : x.shape[1]]
        y = second * torch.addcmul(sums, u, self.filter_fn.bias[:, None])
        return self.o_proj(y.transpose(1, 2))
