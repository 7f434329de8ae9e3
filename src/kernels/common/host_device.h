// HL_EVERYWHERE marks a constexpr function that CPU and CUDA kernels share. C++17. On a device the
// function is always inlined: a call would give kernels that are short of registers a stack frame.
#pragma once

#ifdef __CUDACC__
#define HL_EVERYWHERE __host__ __device__ __forceinline__
#else
#define HL_EVERYWHERE
#endif
