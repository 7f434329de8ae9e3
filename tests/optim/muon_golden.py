"""Prints the golden values of muon_test.cc: three updates of one matrix by Muon, computed in torch in fp64.

The code follows the papers instead of src/: Jordan et al. (2024) for momentum and the quintic Newton-Schulz
iteration, and Liu et al. (2025) for the scale 0.2 sqrt(max(rows, columns)) and the decoupled decay.

  .venv-compare/bin/python tests/optim/muon_golden.py
"""
import math

import torch

ROWS, COLUMNS = 3, 4
LR, DECAY, MOMENTUM = 0.05, 0.1, 0.95


def newton_schulz(g, steps=5):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g / g.norm()
    if g.shape[0] > g.shape[1]:
        x = x.T
    for _ in range(steps):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if g.shape[0] > g.shape[1] else x


def value(step, i):
    return math.sin(1.0 + 3.0 * i + 7.0 * step * (i + 1))


def train(rows, columns):
    weight = torch.tensor([value(0, i) for i in range(rows * columns)], dtype=torch.float64)
    weight = weight.view(rows, columns)
    buffer = torch.zeros_like(weight)
    for step in (1, 2, 3):
        grad = torch.tensor([value(step, i) for i in range(rows * columns)], dtype=torch.float64)
        grad = grad.view(rows, columns)
        buffer = MOMENTUM * buffer + grad
        update = newton_schulz(grad + MOMENTUM * buffer)
        weight = weight * (1 - LR * DECAY)
        weight = weight - LR * 0.2 * math.sqrt(max(rows, columns)) * update
    return weight


for rows, columns in ((ROWS, COLUMNS), (COLUMNS, ROWS)):
    print(", ".join(f"{x:.7f}" for x in train(rows, columns).flatten().tolist()))
