#include "ops/sequence/tokens_before.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>

#include "core/error.h"
#include "kernels/common/cpu/math.h"
#include "ops/torch/autograd.h"
#include "ops/torch/dispatch.h"

namespace halflife::ops {
namespace {

// How many of its tokens each rank gives, and how many each rank takes.
class Shares {
 public:
  Shares(const RowSegment& row, int64_t count) : row_(row), count_(count) {
    for (const int64_t length : row.lengths) given_.push_back(std::min(length, count));
    // No rank reads the tokens of the last one.
    widest_ = *std::max_element(given_.begin(), given_.end() - 1);
  }

  int64_t num_taken() const { return std::min(count_, row_.begin()); }
  // Returns the number of `owner`'s last tokens that this rank takes.
  int64_t TakenFrom(int owner) const {
    int64_t between = 0;
    for (int r = owner + 1; r < row_.rank(); ++r) between += row_.lengths[r];
    return std::clamp<int64_t>(count_ - between, 0, row_.lengths[owner]);
  }
  int64_t given() const { return given_[row_.rank()]; }
  int64_t widest() const { return widest_; }
  // Returns true if no rank needs more tokens than its neighbour has.
  bool from_neighbours() const {
    return std::all_of(row_.lengths.begin(), row_.lengths.end() - 1,
                       [&](int64_t length) { return length >= count_; });
  }

 private:
  const RowSegment& row_;
  int64_t count_;
  std::vector<int64_t> given_;
  int64_t widest_ = 0;
};

std::vector<int64_t> WithTokens(const at::Tensor& x, int64_t count) {
  std::vector<int64_t> sizes(x.sizes().begin(), x.sizes().end());
  sizes[1] = count;
  return sizes;
}

at::Tensor FetchFromNeighbour(const at::Tensor& x, int64_t count, const RowSegment& row) {
  const at::Tensor send =
      row.is_last() ? at::Tensor() : x.narrow(1, x.size(1) - count, count).contiguous();
  const at::Tensor received = at::empty(WithTokens(x, row.is_first() ? 0 : count), x.options());
  row.group
      ->Shift(send, row.is_first() ? at::Tensor() : received, SegmentGroup::Direction::kToNext,
              kTokensBefore)
      ->Wait();
  return received;
}

at::Tensor Fetch(const at::Tensor& x, int64_t count, const RowSegment& row) {
  const Shares shares(row, count);
  if (shares.from_neighbours()) return FetchFromNeighbour(x, count, row);
  const int64_t widest = shares.widest(), given = std::min(shares.given(), widest);
  at::Tensor own = at::zeros(WithTokens(x, widest), x.options());
  own.narrow(1, widest - given, given).copy_(x.narrow(1, x.size(1) - given, given));
  const at::Tensor all = row.group->AllGather(own, kTokensBefore);
  std::vector<at::Tensor> parts = {at::empty(WithTokens(x, 0), x.options())};
  for (int owner = 0; owner < row.rank(); ++owner) {
    const int64_t taken = shares.TakenFrom(owner);
    parts.push_back(all.select(0, owner).narrow(1, widest - taken, taken));
  }
  return at::cat(parts, 1);
}

// Returns the owner's dL/dx [B, T, ...] from `dy`, the gradient of the fetched tokens, in dy's
// dtype.
at::Tensor Return(const at::Tensor& dy, int64_t num_tokens, int64_t count, const RowSegment& row) {
  const Shares shares(row, count);
  at::Tensor dx = at::zeros(WithTokens(dy, num_tokens), dy.options());
  if (shares.from_neighbours()) {
    const at::Tensor received =
        row.is_last() ? at::Tensor() : at::empty(WithTokens(dy, count), dy.options());
    row.group
        ->Shift(row.is_first() ? at::Tensor() : dy.contiguous(), received,
                SegmentGroup::Direction::kToPrevious, "tokens_before gradient")
        ->Wait();
    if (received.defined()) dx.narrow(1, num_tokens - count, count).copy_(received);
    return dx;
  }
  const int64_t widest = shares.widest(), given = std::min(shares.given(), widest);
  std::vector<int64_t> sizes = WithTokens(dy, widest);
  sizes.insert(sizes.begin(), row.size());
  const at::Tensor of_owners = at::zeros(sizes, dy.options());
  int64_t first = 0;
  for (int owner = 0; owner < row.rank(); ++owner) {
    const int64_t taken = shares.TakenFrom(owner);
    of_owners.select(0, owner).narrow(1, widest - taken, taken).copy_(dy.narrow(1, first, taken));
    first += taken;
  }
  const at::Tensor sum = row.group->ReduceScatter(of_owners, "tokens_before gradient");
  dx.narrow(1, num_tokens - given, given).copy_(sum.narrow(1, widest - given, given));
  return dx;
}

}  // namespace

at::Tensor TokensBefore(const at::Tensor& x, int64_t count, const RowSegment& row) {
  HL_CHECK(x.dim() >= 2 && row.lengths.size() == static_cast<size_t>(row.size()) &&
               x.size(1) == row.lengths[row.rank()],
           "x ", x.sizes(), " is not the segment of rank ", row.rank());
  row.group->RecordRead(count);
  count = std::min(count, std::accumulate(row.lengths.begin(), row.lengths.end(), int64_t{0}));
  if (row.size() == 1 || count == 0) return x.narrow(1, 0, 0);
  const auto backward = [row, count, num_tokens = x.size(1),
                         dtype = x.scalar_type()](const BackwardCall& call) -> Tensors {
    const at::Tensor& dy = call.grads[0];
    return {Return(dy.to(ComputeType(dy)), num_tokens, count, row).to(dtype)};
  };
  const auto forward = [&]() -> Forwarded {
    return {.outputs = {Fetch(x, count, row)}, .saved = {}, .backward = backward};
  };
  return Apply({.name = "TokensBefore", .inputs = {x}, .forward = forward})[0];
}

at::Tensor SeenBefore(int64_t count, const RowSegment& row) {
  const at::Tensor& position = row.first_position;
  const at::Tensor back = at::arange(count, 0, -1, position.options());  // the last token: 1
  return back.unsqueeze(0) <= position.clamp_max(row.begin()).unsqueeze(1);
}

at::Tensor DocumentBefore(const at::Tensor& x, int64_t count, const RowSegment& row) {
  const at::Tensor tokens = TokensBefore(x, count, row);
  const at::Tensor absent =
      at::zeros(WithTokens(x, count - tokens.size(1)), x.options().requires_grad(false));
  std::vector<int64_t> sizes(x.dim(), 1);
  sizes[0] = x.size(0), sizes[1] = count;
  return at::where(SeenBefore(count, row).view(sizes), at::cat({absent, tokens}, 1),
                   at::zeros({}, x.options().requires_grad(false)));
}

}  // namespace halflife::ops
