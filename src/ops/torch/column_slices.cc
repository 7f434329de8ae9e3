#include "ops/torch/column_slices.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace halflife::ops {

at::Tensor SharedMatrix::Next(size_t part, int64_t rows, const at::TensorOptions& options) {
  const int64_t width = std::accumulate(widths_.begin(), widths_.end(), int64_t{0});
  std::erase_if(memories_, [&](const Memory& memory) {  // left over from calls with other shapes
    return memory.all.size(0) != rows || memory.all.dtype() != options.dtype() ||
           memory.all.device() != options.device();
  });
  auto memory = std::ranges::find_if(memories_, [&](const Memory& m) { return !m.given[part]; });
  if (memory == memories_.end())
    memory =
        memories_.insert(memory, {.all = at::empty({rows, width}, options.requires_grad(false)),
                                  .given = std::vector<bool>(widths_.size(), false)});
  const auto before = widths_.begin() + static_cast<std::ptrdiff_t>(part);
  const at::Tensor columns =
      memory->all.narrow(-1, std::accumulate(widths_.begin(), before, int64_t{0}), widths_[part]);
  // Detached from the matrix for autograd, which would count a write to another part as a
  // modification of this one.
  at::Tensor place = at::empty({0}, columns.options());
  place.set_(columns.storage(), columns.storage_offset(), columns.sizes(), columns.strides());
  memory->given[part] = true;
  if (std::ranges::all_of(memory->given, [](bool given) { return given; })) memories_.erase(memory);
  return place;
}

namespace {

bool HasAlignedRows(const at::Tensor& heads) {
  constexpr int64_t kUnit = 16;
  return reinterpret_cast<uintptr_t>(heads.const_data_ptr()) % kUnit == 0 &&
         heads.stride(-3) * heads.element_size() % kUnit == 0;
}

}  // namespace

at::Tensor ColumnSlice::EmptyLike(const at::Tensor& x) const {
  const int64_t width = columns == nullptr ? 0 : columns->width(part);
  if (width > 0 && (x.size(-1) == width || (x.dim() > 2 && x.size(-2) * x.size(-1) == width))) {
    at::Tensor place = columns->Next(part, x.numel() / width, x.options()).view(x.sizes());
    const bool heads = x.dim() > 3;
    if (!x.is_cuda() || !heads || HasAlignedRows(place)) return place;
  }
  return at::empty_like(x, x.options().requires_grad(false), at::MemoryFormat::Contiguous);
}

}  // namespace halflife::ops
