// Stands in for the CUDA runtime where kernel sources are compiled for the CPU: "device" memory is
// host memory, a stream is nothing, and every call has ended when it returns. Only what launch code
// next to kernels calls.
#pragma once

#include <cstddef>
#include <cstring>

#include "tools/cuda_emulator/emulator.h"

enum cudaError_t { cudaSuccess = 0 };
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};

inline cudaError_t cudaGetLastError() { return cudaSuccess; }
inline const char* cudaGetErrorString(cudaError_t) { return "no error"; }
inline cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
inline cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
inline cudaError_t cudaMemsetAsync(void* data, int value, size_t bytes, cudaStream_t = nullptr) {
  std::memset(data, value, bytes);
  return cudaSuccess;
}
inline cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                                   cudaStream_t = nullptr) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
