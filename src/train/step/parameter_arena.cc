#include "train/step/parameter_arena.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <cstdlib>
#include <cstring>

#include "core/error.h"

namespace halflife::train {
namespace {

// 4 KiB aligned on the CPU: the bits of a BLAS call may depend on alignment, and a resumed run must
// repeat them.
at::Tensor ZeroedFlat(int64_t count, at::ScalarType dtype, at::Device device) {
  if (!device.is_cpu()) return at::zeros({count}, at::TensorOptions().dtype(dtype).device(device));
  const size_t element = dtype == at::kFloat ? 4 : 2;
  const size_t bytes = (std::max<size_t>(count * element, 1) + 4095) / 4096 * 4096;
  void* memory = std::aligned_alloc(4096, bytes);
  HL_CHECK_AS(ExitCode::kEnvironment, memory != nullptr, "cannot allocate ", bytes,
              " bytes for the parameter arena; use a smaller model or a machine with more memory");
  std::memset(memory, 0, bytes);
  return at::from_blob(
      memory, {count}, [](void* data) { std::free(data); }, at::TensorOptions().dtype(dtype));
}

}  // namespace

ParameterArena::ParameterArena(model::ParameterSet& parameters, const Config& config)
    : parameters_(parameters),
      layout_(parameters.specs(), config.layout),
      device_(config.device),
      main_(ZeroedFlat(layout_.num_elements(), at::kFloat, device_)),
      grads_(ZeroedFlat(layout_.num_elements(), at::kFloat, device_)),
      adam_m_(ZeroedFlat(layout_.num_elements(), at::kFloat, device_)),
      adam_v_(ZeroedFlat(layout_.num_elements(), at::kFloat, device_)) {
  if (config.compute_dtype != at::kFloat) {
    compute_ = ZeroedFlat(layout_.num_compute_elements(), config.compute_dtype, device_);
  }
  for (int i = 0; i < parameters_.size(); ++i) {
    const bool in_copy = compute_.defined() && layout_.specs()[i].region == dist::Region::kCompute;
    at::Tensor view = View(in_copy ? compute_ : main_, i).detach();
    view.set_requires_grad(true);
    parameters_.Bind(i, std::move(view));
  }
}

at::Tensor ParameterArena::View(const at::Tensor& flat, int param) const {
  const dist::ParamSpec& spec = layout_.specs()[param];
  return flat.narrow(0, layout_.offset(param), spec.count()).view(spec.shape);
}

void ParameterArena::Initialise(uint64_t seed) {
  std::vector<float> values;
  for (int i = 0; i < parameters_.size(); ++i) {
    values.resize(layout_.specs()[i].count());
    parameters_.Initialise(i, seed, values.data());
    const at::Tensor source = at::from_blob(values.data(), layout_.specs()[i].shape, at::kFloat);
    View(main_, i).copy_(source);
  }
  RefreshComputeCopy();
}

void ParameterArena::RefreshComputeCopy() {
  if (compute_.defined()) compute_.copy_(main_.narrow(0, 0, layout_.num_compute_elements()));
}

}  // namespace halflife::train
