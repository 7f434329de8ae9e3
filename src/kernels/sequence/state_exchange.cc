#include "kernels/sequence/state_exchange.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "core/error.h"
#include "kernels/sequence/exchange_cost.h"
#include "kernels/torch/tensor_ref.h"

namespace halflife::kernels {
namespace {

using Direction = SegmentGroup::Direction;

// factor before + own; where factor is 0, own.
at::Tensor Fold(const at::Tensor& factor, const at::Tensor& before, const at::Tensor& own) {
  const at::Tensor f = Beside(factor, own);
  return at::where(f == 0, own, f * before + own);
}

// exp(log_transition), [N, C, ...].
Passed PassUnscaled(const SegmentSummary& segment, const SegmentState& before) {
  Passed passed = {.after = {}, .factor = segment.log_transition.exp()};
  for (size_t i = 0; i < segment.own.values.size(); ++i)
    passed.after.values.push_back(Fold(passed.factor, before.values[i], segment.own.values[i]));
  return passed;
}

// The scale after the segment is the largest that either side asks for, so that no factor is above
// 1 but for channels that the largest of their head outgrows.
Passed PassScaled(const SegmentSummary& segment, const SegmentState& before) {
  const at::Tensor& own = segment.own.log_scale;  // [N, C]
  const at::Tensor transition = segment.log_transition.to(own.scalar_type());
  at::Tensor largest = transition;
  while (largest.dim() > 2) largest = largest.amax(-1);
  const at::Tensor log_scale = at::maximum(own, before.log_scale + largest);
  const at::Tensor nothing = log_scale.isneginf();
  const auto relative = [&](const at::Tensor& x) {
    return (x - Beside(log_scale, x)).exp().masked_fill(Beside(nothing, x), 0);
  };
  const at::Tensor& value = segment.own.values[0];
  const at::Tensor factor =
      relative(transition + Beside(before.log_scale, transition)).to(value.scalar_type());
  const at::Tensor of_own = relative(own).to(value.scalar_type());
  Passed passed = {.after = {.values = {}, .log_scale = log_scale}, .factor = factor};
  for (size_t i = 0; i < segment.own.values.size(); ++i) {
    const at::Tensor& x = segment.own.values[i];
    const at::Tensor scaled = at::where(Beside(of_own == 0, x), 0, Beside(of_own, x) * x);
    passed.after.values.push_back(Fold(factor, before.values[i], scaled));
  }
  return passed;
}

// Tensors in one message of bytes, and back.
class Message {
 public:
  explicit Message(Tensors like) : like_(std::move(like)) {}

  at::Tensor Pack(const Tensors& tensors) const {
    Tensors bytes;
    for (const at::Tensor& x : tensors) bytes.push_back(BytesOf(x.contiguous()));
    return at::cat(bytes);
  }
  Tensors Unpack(const at::Tensor& bytes) const {
    Tensors tensors;
    int64_t first = 0;
    for (const at::Tensor& x : like_) {
      const auto count = static_cast<int64_t>(x.nbytes());
      // A copy: a view's type may ask for another alignment than the bytes before it leave.
      tensors.push_back(
          bytes.narrow(0, first, count).clone().view(x.scalar_type()).view(x.sizes()));
      first += count;
    }
    return tensors;
  }
  at::Tensor Empty() const {
    int64_t count = 0;
    for (const at::Tensor& x : like_) count += static_cast<int64_t>(x.nbytes());
    return at::empty({count}, like_[0].options().dtype(at::kByte));
  }

 private:
  Tensors like_;
};

// A state as it travels, and back: its values, then its log scale where it has one.
Tensors ToTensors(const SegmentState& state) {
  Tensors tensors = state.values;
  if (state.log_scale.defined()) tensors.push_back(state.log_scale);
  return tensors;
}
SegmentState ToState(Tensors tensors, bool log_scaled) {
  SegmentState state;
  if (log_scaled) {
    state.log_scale = tensors.back();
    tensors.pop_back();
  }
  state.values = std::move(tensors);
  return state;
}

// Pieces of all tensors [N C, ...], cut along N C.
Tensors Piece(const Tensors& tensors, int64_t piece, int64_t num_pieces) {
  Tensors pieces;
  for (const at::Tensor& x : tensors) {
    const int64_t first = x.size(0) * piece / num_pieces,
                  end = x.size(0) * (piece + 1) / num_pieces;
    pieces.push_back(x.narrow(0, first, end - first));
  }
  return pieces;
}

Tensors Flat(const Tensors& tensors) {  // [N, C, ...] -> [N C, ...]
  Tensors flat;
  for (const at::Tensor& x : tensors) flat.push_back(x.flatten(0, 1));
  return flat;
}

// What a fold along the ranks hands on, [N C, ...] tensors of the shapes of `own`: a segment's is
// `after(own, before)`, with `own` alone where nothing came before it.
struct Relay {
  Direction direction;
  const char* what;
  bool starts, ends;  // whether this rank is the fold's first, its last
  int place;          // of this rank in the fold's order
  Tensors own;        // the message of the first rank
  std::function<Tensors(const Tensors& before, int64_t piece)> after;
};

// -> what came before this rank's segment, [N C, ...] pieces put together; none on the first. Rank
// `place` receives piece p in shift p + place - 1 and sends it in shift p + place.
Tensors RunRelay(const Relay& relay, int64_t num_pieces, const RowSegment& row) {
  const int64_t num_shifts = num_pieces + row.size() - 2;
  std::vector<Tensors> received(num_pieces);
  const auto in_range = [&](int64_t piece) { return piece >= 0 && piece < num_pieces; };
  for (int64_t shift = 0; shift < num_shifts; ++shift) {
    const int64_t to_send = shift - relay.place, to_receive = to_send + 1;
    at::Tensor send, receive;
    if (!relay.ends && in_range(to_send)) {
      const Tensors own = Piece(relay.own, to_send, num_pieces);
      const Tensors message = relay.starts ? own : relay.after(received[to_send], to_send);
      send = Message(own).Pack(message);
    }
    const bool receives = !relay.starts && in_range(to_receive);
    const Message form(receives ? Piece(relay.own, to_receive, num_pieces) : Tensors{});
    if (receives) receive = form.Empty();
    const auto transfer = row.group->Shift(send, receive, relay.direction, relay.what);
    if (!receives) continue;
    transfer->Wait();
    received[to_receive] = form.Unpack(receive);
  }
  if (relay.starts) return {};
  Tensors whole;
  for (size_t i = 0; i < relay.own.size(); ++i) {
    Tensors pieces;
    for (const Tensors& piece : received) pieces.push_back(piece[i]);
    whole.push_back(at::cat(pieces));
  }
  return whole;
}

// Equal on all ranks, as states have one shape.
StateStrategy StrategyFor(const Tensors& message, const RowSegment& row) {
  if (row.strategy != StateStrategy::kCheapest) return row.strategy;
  int64_t bytes = 0;
  for (const at::Tensor& x : message) bytes += static_cast<int64_t>(x.nbytes());
  return row.cost->Cheapest(row.size(), bytes);
}

int64_t NumPieces(StateStrategy strategy, const at::Tensor& value) {
  if (strategy != StateStrategy::kScan) return 1;
  return std::clamp<int64_t>(value.size(0) * value.size(1), 1, kScanPieces);
}

// Shapes of `like` for tensors [N C, ...].
Tensors Unflat(const Tensors& flat, const Tensors& like) {
  Tensors tensors;
  for (size_t i = 0; i < flat.size(); ++i) tensors.push_back(flat[i].view(like[i].sizes()));
  return tensors;
}

SegmentState BeforeByGather(const SegmentSummary& own, const RowSegment& row) {
  const bool scaled = own.own.log_scale.defined();
  Tensors mine = ToTensors(own.own);
  mine.push_back(own.log_transition);
  const Message message(mine);
  const at::Tensor all = row.group->AllGather(message.Pack(mine), "state");
  SegmentState before;
  for (int r = 0; r < row.rank(); ++r) {
    Tensors of_rank = message.Unpack(all.select(0, r));
    SegmentSummary segment = {.own = {}, .log_transition = of_rank.back()};
    of_rank.pop_back();
    segment.own = ToState(std::move(of_rank), scaled);
    before = r == 0 ? segment.own : PassThrough(segment, before).after;
  }
  return before;
}

SegmentState BeforeByRelay(const SegmentSummary& own, StateStrategy strategy,
                           const RowSegment& row) {
  const bool scaled = own.own.log_scale.defined();
  const Tensors mine = ToTensors(own.own);
  const int64_t num_pieces = NumPieces(strategy, mine[0]);
  // [N C, 1, ...]: a piece has the dimensions of a state.
  const auto as_states = [](const Tensors& pieces) {
    Tensors states;
    for (const at::Tensor& x : pieces) states.push_back(x.unsqueeze(1));
    return states;
  };
  const Tensors flat = Flat(mine), transition = Flat({own.log_transition});
  const auto after = [&](const Tensors& before, int64_t piece) -> Tensors {
    const SegmentSummary segment = {
        .own = ToState(as_states(Piece(flat, piece, num_pieces)), scaled),
        .log_transition = as_states(Piece(transition, piece, num_pieces))[0]};
    Tensors out;
    for (const at::Tensor& x :
         ToTensors(PassThrough(segment, ToState(as_states(before), scaled)).after))
      out.push_back(x.squeeze(1));
    return out;
  };
  const Tensors before = RunRelay({.direction = Direction::kToNext,
                                   .what = "state",
                                   .starts = row.is_first(),
                                   .ends = row.is_last(),
                                   .place = row.rank(),
                                   .own = flat,
                                   .after = after},
                                  num_pieces, row);
  return row.is_first() ? SegmentState() : ToState(Unflat(before, mine), scaled);
}

Tensors AfterByGather(const Tensors& local, const at::Tensor& factor, const RowSegment& row) {
  Tensors mine = local;
  mine.push_back(factor);
  const Message message(mine);
  const at::Tensor all = row.group->AllGather(message.Pack(mine), "state gradient");
  Tensors after;
  for (int r = row.size() - 1; r > row.rank(); --r) {
    const Tensors of_rank = message.Unpack(all.select(0, r));
    for (size_t i = 0; i < local.size(); ++i) {
      if (r == row.size() - 1) {
        after.push_back(of_rank[i]);
      } else {
        after[i] = Fold(of_rank.back(), after[i], of_rank[i]);
      }
    }
  }
  return after;
}

Tensors AfterByRelay(const Tensors& local, const at::Tensor& factor, StateStrategy strategy,
                     const RowSegment& row) {
  const int64_t num_pieces = NumPieces(strategy, local[0]);
  const Tensors flat = Flat(local), factors = Flat({factor});
  const auto before = [&](const Tensors& after, int64_t piece) {
    const Tensors own = Piece(flat, piece, num_pieces);
    const at::Tensor f = Piece(factors, piece, num_pieces)[0];
    Tensors out;
    for (size_t i = 0; i < own.size(); ++i) out.push_back(Fold(f, after[i], own[i]));
    return out;
  };
  const Tensors after = RunRelay({.direction = Direction::kToPrevious,
                                  .what = "state gradient",
                                  .starts = row.is_last(),
                                  .ends = row.is_first(),
                                  .place = row.size() - 1 - row.rank(),
                                  .own = flat,
                                  .after = before},
                                 num_pieces, row);
  return row.is_last() ? Tensors{} : Unflat(after, local);
}

}  // namespace

at::Tensor ScaleOrZero(const at::Tensor& log_scale) {
  return log_scale.masked_fill(log_scale.isneginf(), 0);
}
at::Tensor ScaleOfSeen(const at::Tensor& log_scale, const at::Tensor& nothing) {
  return log_scale.masked_fill(nothing, -std::numeric_limits<double>::infinity());
}

at::Tensor Beside(const at::Tensor& x, const at::Tensor& like) {
  at::Tensor view = x;
  while (view.dim() < like.dim()) view = view.unsqueeze(-1);
  return view;
}

Passed PassThrough(const SegmentSummary& segment, const SegmentState& before) {
  HL_CHECK(before.values.size() == segment.own.values.size() &&
               before.log_scale.defined() == segment.own.log_scale.defined(),
           "a state of ", before.values.size(), " tensors before a segment of ",
           segment.own.values.size());
  return before.log_scale.defined() ? PassScaled(segment, before) : PassUnscaled(segment, before);
}

SegmentState StateBefore(const SegmentSummary& own, const RowSegment& row) {
  const StateStrategy strategy = StrategyFor(ToTensors(own.own), row);
  return strategy == StateStrategy::kGather ? BeforeByGather(own, row)
                                            : BeforeByRelay(own, strategy, row);
}

Tensors GradientAfter(const Tensors& local, const at::Tensor& factor, const RowSegment& row) {
  const StateStrategy strategy = StrategyFor(local, row);
  return strategy == StateStrategy::kGather ? AfterByGather(local, factor, row)
                                            : AfterByRelay(local, factor, strategy, row);
}

}  // namespace halflife::kernels
