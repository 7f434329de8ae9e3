"""Bugs for the CUDA kernels of a step's elementwise and row-wise parts."""

from family import Family

# (name, source, text, replacement, test)
MUTATIONS = [
    ("rows: lanes of a row sum one step short", "rows.cuh",
     "for (int offset = lanes / 2; offset > 0;", "for (int offset = lanes / 4; offset > 0;", "rms_norm"),
    ("rows: no barrier before the warps' sums are read", "rows.cuh",
     "= x;\n  __syncthreads();\n", "= x;\n", "rms_norm"),
    ("rows: the last warp's sum dropped", "rows.cuh",
     "warp < lanes / 32; ++warp", "warp < lanes / 32 - 1; ++warp", "rms_norm"),
    ("rows: elements past a row's end are read", "rows.cuh",
     "x[i] = i < count ? Widen(from[i]) : 0.0f;", "x[i] = Widen(from[i]);", "rms_norm"),
    ("rows: elements past a row's end are written", "rows.cuh",
     "    if (i < count) to[i] = Narrow<T>(x[i]);", "    to[i] = Narrow<T>(x[i]);", "rms_norm"),
    ("rows: 16-byte accesses to rows that do not allow them", "rows.cuh",
     "return dim % kPack<T> == 0 && (IsAligned16(pointers) && ...);", "return dim % kPack<T> == 0;",
     "rms_norm"),
    ("rows: halves of a word swapped", "rows.cuh",
     "x[2] = UnpackLo(words.y), x[3] = UnpackHi(words.y);",
     "x[3] = UnpackLo(words.y), x[2] = UnpackHi(words.y);", "rms_norm"),
    ("sums: no barrier before the slices are added", "sum_partials.cu", "  __syncthreads();\n", "",
     "rms_norm"),
    ("sums: the last partial dropped", "sum_partials.cu", "p < count; p += kSlices",
     "p < count - 1; p += kSlices", "rms_norm"),
    ("norm: rows past the last are read", "rms_norm/rms_norm.cu",
     "const bool valid = row < args.num_rows;\n  const", "const bool valid = true;\n  const", "rms_norm"),
    ("norm: one place for the sums of two rows", "rms_norm/rms_norm.cu",
     "partial[turn]);", "partial[0]);", "rms_norm"),
    ("norm: no barrier before the groups' gradients are added", "rms_norm/rms_norm.cu",
     "= dweight[i];\n  __syncthreads();\n", "= dweight[i];\n", "rms_norm"),
    ("norm: the last group's gradient dropped", "rms_norm/rms_norm.cu",
     "group < schedule.rows_per_block; ++group", "group < schedule.rows_per_block - 1; ++group",
     "rms_norm"),
    ("norm: long rows sum onto what the workspace held", "rms_norm/rms_norm.cu",
     "first < stride ? terms.mn[i] : mine[c + i]", "first < 0 ? terms.mn[i] : mine[c + i]", "rms_norm"),
    ("norm: a long row keeps its last pack", "rms_norm/rms_norm.cu",
     "if (!place.once) Load(normed", "if (false) Load(normed", "rms_norm"),
    ("norm: other gradient of x dropped", "rms_norm/rms_norm.cu", "dx[i] += other[i];", ";", "rms_norm"),
]

FAMILIES = ("rms_norm",)

STEP = Family(
    name="step kernels", folder="src/kernels",
    sources=["sum_partials.cu", *(f"{family}/{family}.cu" for family in FAMILIES)],
    tests={family: f"tests/kernels/{family}_emulated_test.cc" for family in FAMILIES},
    mutations=MUTATIONS)
