#include "ops/torch/column_slices.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>

namespace halflife::ops {

at::Tensor SharedMatrix::Next(size_t part, const at::Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = std::accumulate(widths_.begin(), widths_.end(), int64_t{0});
  std::erase_if(memories_, [&](const Memory& memory) {  // left over from calls with other shapes
    return memory.all.sizes() != at::IntArrayRef(shape) ||
           memory.all.scalar_type() != like.scalar_type() || memory.all.device() != like.device();
  });
  auto memory = std::ranges::find_if(memories_, [&](const Memory& m) { return !m.given[part]; });
  if (memory == memories_.end())
    memory = memories_.insert(memory, {.all = at::empty(shape, like.options().requires_grad(false)),
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

at::Tensor ColumnSlice::EmptyLike(const at::Tensor& x) const {
  if (columns != nullptr) return columns->Next(part, x);
  return at::empty_like(x, x.options().requires_grad(false), at::MemoryFormat::Contiguous);
}

}  // namespace halflife::ops
