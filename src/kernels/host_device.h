// HL_HOST_DEVICE marks a constexpr function that CPU and CUDA kernels share. C++17.
#pragma once

#ifdef __CUDACC__
#define HL_HOST_DEVICE __host__ __device__
#else
#define HL_HOST_DEVICE
#endif
