#include "kernels/torch/gradient_columns.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>

namespace halflife::kernels {

at::Tensor GradientColumns::Next(size_t part, const at::Tensor& like) {
  std::vector<int64_t> shape = like.sizes().vec();
  shape.back() = std::accumulate(widths_.begin(), widths_.end(), int64_t{0});
  const bool fits = all_.defined() && !given_[part] && all_.sizes() == at::IntArrayRef(shape) &&
                    all_.scalar_type() == like.scalar_type() && all_.device() == like.device();
  if (!fits) {
    all_ = at::empty(shape, like.options().requires_grad(false));
    given_.assign(widths_.size(), false);
  }
  const auto before = widths_.begin() + static_cast<std::ptrdiff_t>(part);
  const at::Tensor place =
      all_.narrow(-1, std::accumulate(widths_.begin(), before, int64_t{0}), widths_[part]);
  given_[part] = true;
  if (std::ranges::all_of(given_, [](bool given) { return given; })) all_.reset();
  return place;
}

at::Tensor GradientColumn::EmptyLike(const at::Tensor& x) const {
  if (columns != nullptr) return columns->Next(part, x);
  return at::empty_like(x, x.options().requires_grad(false), at::MemoryFormat::Contiguous);
}

}  // namespace halflife::kernels
