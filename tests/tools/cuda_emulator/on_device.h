// Gives a kernel access to a host object: the object itself in the emulator, a copy in device
// memory on a GPU. For tests that run on both.
//
//   OnDevice<Registers> io(&registers);      // uploads the object
//   Launch({1, 32, 0, "mma"}, nullptr, MmaKernel, io.get());
//   io.Download();                           // waits for the kernel
#pragma once

#include <cstddef>
#include <vector>

#include "kernels/common/cuda/device.h"

namespace halflife::kernels::test {

template <typename T>
class OnDevice {
 public:
  explicit OnDevice(T* host, size_t count = 1) : host_(host), bytes_(count * sizeof(T)) {
#if HL_EMULATE
    device_ = host;
#else
    Check(cudaMalloc(reinterpret_cast<void**>(&device_), bytes_));
    Check(cudaMemcpy(device_, host_, bytes_, cudaMemcpyHostToDevice));
#endif
  }
  explicit OnDevice(std::vector<T>* host) : OnDevice(host->data(), host->size()) {}
  ~OnDevice() {
#if !HL_EMULATE
    cudaFree(device_);
#endif
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

  T* get() const { return device_; }
  void Download() {
#if !HL_EMULATE
    Check(cudaDeviceSynchronize());
    Check(cudaMemcpy(host_, device_, bytes_, cudaMemcpyDeviceToHost));
#endif
  }

 private:
#if !HL_EMULATE
  static void Check(cudaError_t status) {
    HL_CHECK(status == cudaSuccess, "CUDA: ", cudaGetErrorString(status));
  }
#endif
  T* host_;
  T* device_ = nullptr;
  size_t bytes_;
};

}  // namespace halflife::kernels::test
